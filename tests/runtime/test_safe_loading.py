# Copyright (c) mmdet_megdet contributors. All rights reserved.
from __future__ import annotations

import os
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch
from mmengine.logging import HistoryBuffer
from mmengine.runner import checkpoint as upstream
from mmengine.runner.checkpoint import CheckpointLoader

from mmdet_megdet.errors import CheckpointError
from mmdet_megdet.runtime import trust_checkpoints

KEPT = (0.0, 0.01, 0.5, 0.99)  # of a truncated file


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


class Stranger:
    """A class that nobody allowed."""


def getattr_call(owner, name):
    return Call(getattr, owner, name)


def load(path):
    return CheckpointLoader.load_checkpoint(str(path), 'cpu', logger='silent')


def write(folder, content):
    path = folder / 'checkpoint.pth'
    torch.save(content, path)
    return path


def test_history_buffer_comes_back(tmp_path):
    buffer = HistoryBuffer()
    buffer.update(1.5, 2)
    buffer.update(3)
    loaded = load(write(tmp_path, dict(scalar=buffer)))['scalar']
    assert [column.tolist() for column in loaded.data] == [[1.5, 3], [2, 1]]
    assert loaded.statistics('mean') == 1.5  # (1.5 + 3) / (2 + 1)
    assert loaded.statistics('max') == 3
    # pickle writes no bytes as a call of ``bytes``.
    empty = load(write(tmp_path, HistoryBuffer()))
    assert [column.shape for column in empty.data] == [(0,), (0,)]


@pytest.mark.parametrize(
    'dtype', ['bool', 'uint8', 'int32', 'int64', 'float16', 'float64']
)
def test_numpy_numbers_come_back(tmp_path, dtype):
    array = np.array([[0, 1], [2, 3]], dtype=dtype)
    loaded = load(write(tmp_path, dict(array=array, number=array[1, 1])))
    assert loaded['array'].dtype == array.dtype
    np.testing.assert_array_equal(loaded['array'], array)
    assert type(loaded['number']) is type(array[1, 1])
    assert loaded['number'] == array[1, 1]


def test_files_of_either_numpy_load():
    """numpy 2 writes numpy._core where numpy 1 wrote numpy.core."""
    allowed = torch.serialization.get_safe_globals()
    names = {entry[1] for entry in allowed if isinstance(entry, tuple)}
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        assert {f'{module}._reconstruct', f'{module}.scalar'} <= names


@pytest.mark.parametrize(
    ('content', 'named'),
    [
        (Call(os.system, 'touch pwned'), 'system'),
        (Call(eval, "open('pwned', 'w')"), 'builtins.eval'),
        (Stranger(), 'test_safe_loading.Stranger'),
        (getattr_call(dict, 'pop'), 'builtins.dict'),
        (getattr_call(OrderedDict, 'pop'), "getattr(OrderedDict, 'pop')"),
        (getattr_call(HistoryBuffer, '__init__'), "'__init__'"),
        (getattr_call(HistoryBuffer, '_statistics_methods'), 'HistoryBuffer'),
        (getattr_call(HistoryBuffer, 'register_statistics'), 'register_stat'),
        (getattr_call(HistoryBuffer(), 'mean'), "HistoryBuffer'>, 'mean'"),
        (
            getattr_call(getattr_call(HistoryBuffer, 'mean'), '__globals__'),
            '__globals__',
        ),
        (Call(HistoryBuffer.mean, None), 'HistoryBuffer.mean'),
    ],
)
def test_anything_else_is_refused(tmp_path, monkeypatch, content, named):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, dict(state_dict={}, extra=content))
    with pytest.raises(CheckpointError) as refusal:
        load(path)
    message = str(refusal.value)
    assert named in message
    assert str(path) in message
    assert '--trust-checkpoint' in message
    assert 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1' in message
    assert not (tmp_path / 'pwned').exists()


def test_trust_is_explicit(tmp_path, monkeypatch):
    # setenv first, so that monkeypatch takes the variable back afterwards.
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '0')
    path = write(tmp_path, Stranger())
    with pytest.raises(CheckpointError):
        load(path)
    trust_checkpoints()
    with pytest.warns(UserWarning, match='forcing weights_only=False'):
        assert type(load(path)) is Stranger


@pytest.mark.parametrize(
    'broken',
    [
        *(lambda whole, k=keep: whole[: int(k * len(whole))] for keep in KEPT),
        lambda _: b'version https://git-lfs.github.com/spec/v1\n',
        lambda _: b'\xff\xfe\x00\x01' * 200,
        lambda _: pickle.dumps({'a': 1}),
    ],
)
def test_a_file_that_is_not_whole(tmp_path, broken):
    path = write(tmp_path, dict(weight=torch.zeros(1000)))
    path.write_bytes(broken(path.read_bytes()))
    with pytest.raises(CheckpointError, match='not a whole checkpoint'):
        load(path)


def test_missing_file_stays_upstreams_error(tmp_path):
    with pytest.raises(FileNotFoundError, match='none'):
        load(tmp_path / 'none.pth')


def test_every_scheme_has_a_loader_of_ours():
    for loader in CheckpointLoader._schemes.values():
        assert loader.__wrapped__.__module__ == upstream.__name__


def test_what_was_loaded_can_be_written(tmp_path):
    content = dict(meta=dict(epoch=1, cfg='a = 1'), state_dict=OrderedDict())
    loaded = load(write(tmp_path, content))
    assert loaded == dict(meta=dict(epoch=1), state_dict={})
    assert loaded.config_text == 'a = 1'
    assert load(write(tmp_path, loaded)) == loaded


def test_metadata_of_a_state_dict_stays(tmp_path):
    state = torch.nn.BatchNorm1d(2).state_dict()
    assert load(write(tmp_path, state))._metadata == state._metadata


def test_methods_that_a_file_hides(tmp_path):
    """pickle sets attributes of an OrderedDict."""
    meta = OrderedDict(config='a = 1')
    meta.pop = meta.keys = HistoryBuffer.mean
    loaded = load(write(tmp_path, OrderedDict(meta=meta)))
    assert loaded['meta'] == {}
