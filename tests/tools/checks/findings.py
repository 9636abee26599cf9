# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What tests say of findings."""

from __future__ import annotations


def levels(findings):
    return [finding.level for finding in findings]


def only(findings, level):
    """The one finding of this level."""
    (finding,) = [f for f in findings if f.level == level]
    return finding
