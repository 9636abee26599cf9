# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Errors that a user is told without a traceback, and exit statuses."""

from __future__ import annotations

# "Try again": sysexits.h's EX_TEMPFAIL.
REQUEUE_STATUS = 75
# Another rank is gone, or could not be reached: EX_UNAVAILABLE.
RANK_LOST_STATUS = 69


class MegDetError(Exception):
    """An error that the user can put right: value, reason and remedy.

    The tools print it as one message, without a traceback.
    """


class ConfigError(MegDetError, ValueError):
    """A config, an option or an argument that cannot do what it says."""


class CheckpointError(MegDetError, RuntimeError):
    """A checkpoint cannot be read, or holds what is not to be trusted."""


class NotResumableError(CheckpointError, KeyError):
    """A checkpoint lacks what a training needs to resume from it."""

    # MMEngine catches KeyError where it can do without; that one's is a repr.
    __str__ = CheckpointError.__str__


class DataError(MegDetError, RuntimeError):
    """An image or an annotation with which training cannot go on."""

    def __init__(self, text: str) -> None:
        # torch hands on what a data worker raises with its whole traceback as
        # the message: that comes last here.
        _, raised, message = text.rpartition(f'{type(self).__name__}: ')
        if raised and text.startswith('Caught '):
            text = f'{message.strip()}\n\n{text}'
        super().__init__(text)


class LaunchError(MegDetError, RuntimeError):
    """This process was not started as its launcher option says."""


class NonFiniteLossError(MegDetError, RuntimeError):
    """A loss is NaN or infinite, on some rank."""


class Preempted(SystemExit):
    """Training was asked to stop, and its checkpoint is written."""

    def __init__(self) -> None:
        super().__init__(REQUEUE_STATUS)
