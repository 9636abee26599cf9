# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Findings, and how they are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

PASS, WARN, FAIL = 'PASS', 'WARN', 'FAIL'
_STYLES = {PASS: 'green', WARN: 'yellow', FAIL: 'bold red'}


class Finding(NamedTuple):
    """One line of a doctor's report.

    Attributes:
        level (str): ``PASS``; ``WARN``: the run works, but not as somebody
            may think; ``FAIL``: it does not run, or is wrong.
        check (str): What was looked at, in a word or two.
        text (str): What was found.
        remedy (str): What to do about it; empty for a PASS.
    """

    level: str
    check: str
    text: str
    remedy: str = ''


passed = partial(Finding, PASS)
warning = partial(Finding, WARN)
failure = partial(Finding, FAIL)


class Report:
    """Collects findings and shows them as they come, unless it is silent."""

    def __init__(self, silent: bool = False) -> None:
        self.findings: list[Finding] = []
        self._console = Console(highlight=False, soft_wrap=True, quiet=silent)

    def section(self, title: str) -> None:
        """Show a heading."""
        self._console.print(f'\n{title}', style='bold', markup=False)

    def add(self, findings: Iterable[Finding]) -> None:
        """Take findings in, and show them as they come."""
        for finding in findings:
            self.findings.append(finding)
            line = Text.assemble(
                (f'{finding.level}  ', _STYLES[finding.level]),
                (f'{finding.check}: ', 'bold'),
                finding.text,
            )
            if finding.remedy:
                line.append(f'\n      -> {finding.remedy}', style='italic')
            self._console.print(line)

    def run(
        self,
        check: str,
        function: Callable[..., Iterable[Finding]],
        *args: Any,
    ) -> None:
        """Add a check's findings; if it breaks down, that is one."""
        with self.checking(check):
            self.add(function(*args))

    @contextmanager
    def checking(self, check: str) -> Iterator[None]:
        """Make an error in what is done inside a finding of this name."""
        try:
            yield
        except Exception as error:
            text = f'could not be checked: {reason(error)}'
            remedy = 'Mend what this says; a failure above may be its cause.'
            self.add([failure(check, text, remedy)])

    def close(self) -> int:
        """Show the counts; return the exit status: 1 if anything failed."""
        levels = Counter(finding.level for finding in self.findings)
        counts = (f'{levels[level]} {level}' for level in (PASS, WARN, FAIL))
        self.section(', '.join(counts))
        return int(levels[FAIL] > 0)


def reason(error: BaseException) -> str:
    """Return an error in one line."""
    text = ' '.join(str(error).split())
    return f'{type(error).__name__}: {text}' if text else type(error).__name__
