# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import traceback

import pytest

from mmdet_megdet.errors import (
    ConfigError,
    DataError,
    MegDetError,
    NotResumableError,
)
from mmdet_megdet.ranks import all_raise, differences
from tests.distributed.ranks import run_ranks


class TwoNumbersError(ConfigError):
    """Is not called with its text, and holds what pickle does not take."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f'{first} contradicts {second}.')
        self.explain = lambda: 'more'


def raise_local():
    class LocalError(DataError):
        """Of no module in which another rank finds it."""

    raise LocalError('of a local type.')


def raise_config(text='no such option.'):
    raise ConfigError(text)


def raise_two_numbers():
    raise TwoNumbersError(4, 6)


def raise_not_resumable():
    raise NotResumableError('no message hub.')


def raise_key():
    return {}['a']


def sound():
    pass


def stop():
    raise SystemExit(3)


# What each of two ranks does in the block, and what leaves it on each.
CASES = [
    ([sound, sound], [None, None]),
    ([sound, raise_config], [(ConfigError, 'no such option.')] * 2),
    ([raise_config, raise_config], [(ConfigError, 'no such option.')] * 2),
    # That of the lowest rank.
    ([raise_two_numbers, raise_config], [(TwoNumbersError, '4 co')] * 2),
    # What pickle does not take.
    ([sound, raise_two_numbers], [(TwoNumbersError, '4 contradicts 6.')] * 2),
    ([raise_local, sound], [('LocalError', 'of a'), (DataError, 'of a')]),
    # Whose text is not the one that it was made with.
    ([sound, raise_not_resumable], [(NotResumableError, 'no message')] * 2),
    # An error of ours in a check: the other rank does not wait either.
    ([raise_key, sound], [(KeyError, "'a'"), (LookupError, "'a'")]),
]  # fmt: skip


def _play(rank, world_size):
    """What left the block in each case, as type, text and traceback."""
    found = []
    for actions, _ in CASES:
        try:
            with all_raise():
                actions[rank]()
        except Exception as error:
            lines = ''.join(traceback.format_exception(error))
            found.append((type(error).__name__, str(error), lines))
        else:
            found.append(None)
    return found


@pytest.fixture(scope='module')
def played():
    return run_ranks(_play, 2)


@pytest.mark.parametrize('case', range(len(CASES)))
def test_all_raise_the_same(played, case):
    actions, expected = CASES[case]
    for rank, wanted in enumerate(expected):
        found = played[rank][case]
        if wanted is None:
            assert found is None
            continue
        kind, text = wanted
        assert found[0] == getattr(kind, '__name__', kind)
        assert found[1].startswith(text)
        # A rank's own traceback is kept, also behind another rank's error.
        own = actions[rank].__name__
        assert (f'in {own}\n' in found[2]) is (own != 'sound')


def test_in_one_process_the_error_is_itself():
    error = ConfigError('a')
    with pytest.raises(ConfigError) as caught, all_raise():
        raise error
    assert caught.value is error
    assert caught.value.__cause__ is None
    assert isinstance(error, MegDetError)


def test_what_ends_a_process_leaves_at_once():
    with pytest.raises(SystemExit, match='3'), all_raise():
        stop()


def test_differences():
    ranks = [{'a': '1', 'b': '2'}] * 10
    assert differences(ranks) is None
    ranks[3] = {'a': '1', 'b': 5}
    ranks[4] = {'a': '1'}
    assert differences(ranks) == (
        'b is 2 on ranks 0-2, 5-9 and 5 on rank 3 and not set on rank 4'
    )
    many = [{str(i): rank for i in range(8)} for rank in range(2)]
    assert differences(many, most=1) == (
        '0 is 0 on rank 0 and 1 on rank 1 and 7 more'
    )
    # As text: a number that travelled is the same.
    assert differences([{'a': 1}, {'a': '1'}]) is None
