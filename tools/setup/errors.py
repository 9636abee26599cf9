# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""How the set-up's programs say what went wrong."""

from __future__ import annotations

import sys
from collections.abc import Callable


class SetupError(Exception):
    """Something that the user can mend; its text says how."""


def main_with_errors(main: Callable[[], None]) -> None:
    """Run ``main``; a :class:`SetupError` ends it without a traceback."""
    try:
        main()
    except SetupError as error:
        sys.exit(f'set-up: {error}')
    except KeyboardInterrupt:
        sys.exit('set-up: interrupted; run it again to continue')
