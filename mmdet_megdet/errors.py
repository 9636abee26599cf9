# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Errors that a user is told without a traceback, and exit statuses."""

from __future__ import annotations

# "Try again": sysexits.h's EX_TEMPFAIL.
REQUEUE_STATUS = 75
# Another rank is gone, or could not be reached: EX_UNAVAILABLE.
RANK_LOST_STATUS = 69


class MegDetError(Exception):
    """An error that the user can put right: value, reason and remedy.

    Every refusal of this package derives from it. The tools print it as one
    message, without a traceback, and end with status 1.
    """


class ConfigError(MegDetError, ValueError):
    """A config, an option or an argument that cannot do what it says."""


class CheckpointError(MegDetError, RuntimeError):
    """A checkpoint cannot be read, or holds what is not to be trusted."""


class NotResumableError(CheckpointError, KeyError):
    """A checkpoint lacks what a training needs to resume from it.

    A KeyError too, which MMEngine catches where it can do without.
    """

    # KeyError's is a repr.
    __str__ = CheckpointError.__str__


class DataError(MegDetError, RuntimeError):
    """An image or an annotation with which training cannot go on.

    torch hands on what a data worker raises with the worker's whole traceback
    as the message. There the message itself comes first here, and the
    traceback after it.
    """

    def __init__(self, text: str) -> None:
        _, raised, message = text.rpartition(f'{type(self).__name__}: ')
        if raised and text.startswith('Caught '):
            text = f'{message.strip()}\n\n{text}'
        super().__init__(text)


class LaunchError(MegDetError, RuntimeError):
    """This process was not started as its launcher option says."""


class NonFiniteLossError(MegDetError, RuntimeError):
    """A loss is NaN or infinite, on some rank."""


class Preempted(SystemExit):
    """Training was asked to stop, and its checkpoint is written.

    The process then ends with status 75, for a requeue to go by.
    """

    def __init__(self) -> None:
        super().__init__(REQUEUE_STATUS)
