# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""What tests say of findings."""

import re

LINE = re.compile(r'^(PASS|WARN|FAIL)  (.*?): (.*)$', re.M)


def levels(findings):
    return [finding.level for finding in findings]


def only(findings, level):
    """The one finding of this level."""
    (finding,) = [f for f in findings if f.level == level]
    return finding


def shown(output, level):
    """Texts of a doctor's output at a level, by their checks."""
    found = {}
    for seen, check, text in LINE.findall(output):
        if seen == level:
            found.setdefault(check, []).append(text)
    return found
