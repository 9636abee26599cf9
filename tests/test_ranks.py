# Copyright (c) mmdet_megdet contributors. All rights reserved.
import traceback

import pytest

from mmdet_megdet.errors import ConfigError, DataError, NotResumableError
from mmdet_megdet.ranks import all_raise, differences
from tests.distributed.ranks import run_ranks


class TwoNumbersError(ConfigError):
    """Is not called with its text, and holds what pickle does not take."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f'{first} contradicts {second}.')
        self.explain = lambda: 'more'


# Of no module in which another rank finds it.
LocalError = type('LocalError', (DataError,), {'__module__': 'nowhere'})
CONFIG = ConfigError('no such option.')
TWO = TwoNumbersError(4, 6)
# What each of two ranks raises in the block, and what leaves it on each.
CASES = [
    (None, None, None, None),
    (None, CONFIG, *['ConfigError: no such option.'] * 2),
    (CONFIG, CONFIG, *['ConfigError: no such option.'] * 2),
    # That of the lowest rank.
    (TWO, CONFIG, *['TwoNumbersError: 4 contradicts 6.'] * 2),
    # What pickle does not take.
    (None, TWO, *['TwoNumbersError: 4 contradicts 6.'] * 2),
    (LocalError('of'), None, 'LocalError: of', 'DataError: of'),
    # Whose text is not the one that it was made with.
    (None, NotResumableError('hub'), *['NotResumableError: hub'] * 2),
    # An error of ours in a check: the other rank does not wait either.
    (KeyError('a'), None, "KeyError: 'a'", "LookupError: 'a'"),
]


def _play(rank, world_size):
    """Return what left the block in each case, and its traceback."""
    found = []
    for case in CASES:
        try:
            with all_raise():
                if case[rank] is not None:
                    raise case[rank]
        except Exception as error:
            lines = ''.join(traceback.format_exception(error))
            found.append((f'{type(error).__name__}: {error}', lines))
        else:
            found.append((None, ''))
    return found


def test_all_raise_the_same():
    for rank, played in enumerate(run_ranks(_play, 2)):
        for case, (left, lines) in zip(CASES, played, strict=True):
            assert left == case[2 + rank]
            # A rank's own traceback is kept, also behind another's error.
            assert ('raise case[rank]' in lines) is (case[rank] is not None)


def test_in_one_process_the_error_is_itself():
    with pytest.raises(ConfigError) as caught, all_raise():
        raise CONFIG
    assert caught.value is CONFIG
    assert CONFIG.__cause__ is None


def test_what_ends_a_process_leaves_at_once(monkeypatch):
    monkeypatch.setattr('mmdet_megdet.ranks.all_gather_object', None)
    with pytest.raises(SystemExit, match='3'), all_raise():
        raise SystemExit(3)


def test_differences():
    ranks = [{'a': '1', 'b': '7'}] * 10
    assert differences(ranks) is None
    ranks[3] = {'a': '1', 'b': 5}
    ranks[4] = {'a': '1'}
    assert differences(ranks) == (
        'b is 7 on ranks 0-2, 5-9 and 5 on rank 3 and not set on rank 4'
    )
    many = [{str(i): rank for i in range(8)} for rank in range(2)]
    assert differences(many, most=1) == (
        '0 is 0 on rank 0 and 1 on rank 1 and 7 more'
    )
    # As text: a number that travelled is the same.
    assert differences([{'a': 1}, {'a': '1'}]) is None
