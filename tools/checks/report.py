# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Findings, and how they are shown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
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


def passed(check: str, text: str) -> Finding:
    """Return a finding that needs nothing done."""
    return Finding(PASS, check, text)


def warning(check: str, text: str, remedy: str) -> Finding:
    """Return a finding with which a run works, but not as one may think."""
    return Finding(WARN, check, text, remedy)


def failure(check: str, text: str, remedy: str) -> Finding:
    """Return a finding with which a run does not work, or is wrong."""
    return Finding(FAIL, check, text, remedy)


def broken(check: str, error: BaseException) -> Finding:
    """Return the finding that a check itself did not come to an end."""
    return failure(
        check,
        f'could not be checked: {reason(error)}',
        'Mend what this says; the failures above may be its cause.',
    )


class Report:
    """Collects findings and shows each as soon as it is there.

    Args:
        as_json (bool): Show nothing until :meth:`close`, and then one JSON
            object. Defaults to False.
        silent (bool): Show nothing at all, as on every rank but one.
            Defaults to False.
    """

    def __init__(self, as_json: bool = False, silent: bool = False) -> None:
        self.findings: list[Finding] = []
        self.figures: dict[str, Any] = {}
        self._as_json = as_json
        self._silent = silent
        self._console = Console(
            highlight=False, soft_wrap=True, quiet=as_json or silent
        )

    def section(self, title: str) -> None:
        """Show a heading."""
        self._console.print(f'\n{title}', style='bold', markup=False)

    def add(self, findings: Iterable[Finding]) -> None:
        """Take findings in, and show them as they come."""
        for finding in findings:
            self.findings.append(finding)
            line = Text()
            line.append(f'{finding.level}  ', style=_STYLES[finding.level])
            line.append(f'{finding.check}: ', style='bold')
            line.append(finding.text)
            if finding.remedy:
                line.append(f'\n      -> {finding.remedy}', style='italic')
            self._console.print(line)

    def run(
        self,
        check: str,
        function: Callable[..., Iterable[Finding]],
        *args: Any,
    ) -> None:
        """Run a check; if it breaks down, that is a finding too.

        Args:
            check (str): Its name, for that finding.
            function (Callable): Gives findings, one by one or as a list.
            *args: Its arguments.
        """
        try:
            self.add(function(*args))
        except Exception as error:
            self.add([broken(check, error)])

    def close(self) -> int:
        """Show the end of the report.

        Returns:
            int: The exit status: 1 if anything failed, else 0.
        """
        levels = Counter(finding.level for finding in self.findings)
        counts = {level: levels[level] for level in (PASS, WARN, FAIL)}
        if self._as_json and not self._silent:
            result = dict(
                ok=not counts[FAIL],
                counts=counts,
                findings=[finding._asdict() for finding in self.findings],
                figures=self.figures,
            )
            print(json.dumps(result, indent=2), flush=True)
        self.section(', '.join(f'{n} {level}' for level, n in counts.items()))
        return int(counts[FAIL] > 0)


def reason(error: BaseException) -> str:
    """Return an error in one line."""
    text = ' '.join(str(error).split())
    return f'{type(error).__name__}: {text}' if text else type(error).__name__


def readable_bytes(number: float) -> str:
    """Return a number of bytes with three digits and its unit."""
    for unit, size in (('GB', 1e9), ('MB', 1e6), ('kB', 1e3)):
        if number >= size:
            return f'{number / size:.3g} {unit}'
    return f'{number:.0f} B'
