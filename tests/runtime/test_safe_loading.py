# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Nothing in a checkpoint is executed, whoever reads it."""

import copy
import os
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch
from mmengine.config import Config, ConfigDict
from mmengine.infer import BaseInferencer
from mmengine.logging import HistoryBuffer
from mmengine.runner import checkpoint as upstream
from mmengine.runner.checkpoint import CheckpointLoader

from mmdet_megdet.errors import CheckpointError
from mmdet_megdet.runtime import trust_checkpoints
from tests.data.faults_run import train

TRUST = 'TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'
PROOF = "__import__('pathlib').Path('proof').touch()"
# Each line leaves a file if Config.fromstring meets it.
TEXT = f"""{PROOF}
gpu_ids = [{PROOF}]
_base_ = 'evil.py'
custom_imports = dict(imports=['evil'])
"""


class Call:
    """Pickles as the call of a function; itself a class nobody allowed."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        function, *args = self.call or (Call,)
        return function, tuple(args)


def attribute(owner, name):
    return Call(getattr, owner, name)


def load(path='checkpoint.pth'):
    return CheckpointLoader.load_checkpoint(path, 'cpu', logger='silent')


def reload(content):
    torch.save(content, 'checkpoint.pth')
    return load()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / 'evil.py').write_text(PROOF)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    # set, so that what a test sets is taken back afterwards.
    monkeypatch.setenv(TRUST, '0')
    yield tmp_path
    assert not (tmp_path / 'proof').exists()


def test_what_mmengine_writes_comes_back():
    buffer = HistoryBuffer()
    buffer.update(1.5, 2)
    buffer.update(3)
    loaded = reload(dict(scalar=buffer))['scalar']
    assert [column.tolist() for column in loaded.data] == [[1.5, 3], [2, 1]]
    assert loaded.statistics('mean') == 1.5  # (1.5 + 3) / (2 + 1)
    assert loaded.statistics('max') == 3
    # pickle writes no bytes as a call of ``bytes``.
    empty = reload(HistoryBuffer())
    assert [column.shape for column in empty.data] == [(0,), (0,)]
    for dtype in ('bool', 'uint8', 'int32', 'int64', 'float16', 'float64'):
        array = np.array([[0, 1], [2, 3]], dtype=dtype)
        loaded, number = reload((array, array[1, 1]))
        np.testing.assert_array_equal(loaded, array, strict=True)
        assert type(number) is type(array[1, 1])
        assert number == array[1, 1]
    # Also where numpy 2 wrote numpy._core and numpy 1 wrote numpy.core.
    allowed = torch.serialization.get_safe_globals()
    names = {entry[1] for entry in allowed if isinstance(entry, tuple)}
    for module in ('numpy.core.multiarray', 'numpy._core.multiarray'):
        assert {f'{module}._reconstruct', f'{module}.scalar'} <= names
    # The versions of a state_dict, and configs as dicts.
    state = torch.nn.BatchNorm1d(2).state_dict()
    assert reload(state)._metadata == state._metadata != {}
    loaded = reload(ConfigDict(a=[ConfigDict(b=1)]))
    assert loaded == dict(a=[dict(b=1)])
    assert type(loaded['a'][0]) is dict


@pytest.mark.parametrize(('content', 'named'), [
    (Call(os.system, 'touch proof'), 'system'),
    (Call(eval, "open('proof', 'w')"), 'builtins.eval'),
    (Call(), 'test_safe_loading.Call'),
    (attribute(dict, 'pop'), 'builtins.dict'),
    (attribute(OrderedDict, 'pop'), "getattr(OrderedDict, 'pop')"),
    (attribute(HistoryBuffer, '__init__'), "'__init__'"),
    (attribute(HistoryBuffer, '_statistics_methods'), 'HistoryBuffer'),
    (attribute(HistoryBuffer, 'register_statistics'), 'register_stat'),
    (attribute(HistoryBuffer(), 'mean'), "HistoryBuffer'>, 'mean'"),
    (attribute(attribute(HistoryBuffer, 'mean'), '__globals__'),
     '__globals__'),
    (Call(HistoryBuffer.mean, None), 'HistoryBuffer.mean'),
])  # fmt: skip
def test_anything_else_is_refused(content, named):
    with pytest.raises(CheckpointError) as refusal:
        reload(dict(state_dict={}, extra=content))
    for part in (named, 'checkpoint.pth', '--trust-checkpoint', f'{TRUST}=1'):
        assert part in str(refusal.value)


def test_trust_is_explicit():
    with pytest.raises(CheckpointError):
        reload(Call())
    trust_checkpoints()
    with pytest.warns(UserWarning, match='forcing weights_only=False'):
        assert type(load()) is Call


def test_a_file_that_is_not_whole(folder):
    path = folder / 'checkpoint.pth'
    torch.save(dict(weight=torch.zeros(1000)), path)
    whole = path.read_bytes()
    for broken in (
        *(whole[: int(part * len(whole))] for part in (0, 0.01, 0.5, 0.99)),
        b'version https://git-lfs.github.com/spec/v1\n',
        b'\xff\xfe\x00\x01' * 200,
        pickle.dumps({'a': 1}),
    ):
        path.write_bytes(broken)
        with pytest.raises(CheckpointError, match='not a whole checkpoint'):
            load()
    # Upstream's error.
    with pytest.raises(FileNotFoundError, match='none'):
        load('none.pth')
    # From any address.
    for loader in CheckpointLoader._schemes.values():
        assert loader.__wrapped__.__module__ == upstream.__name__


def test_configs_are_not_handed_on():
    content = dict(meta=dict(epoch=1, cfg='a = 1'), state_dict=OrderedDict())
    loaded = reload(content)
    assert loaded == dict(meta=dict(epoch=1), state_dict={})
    assert loaded.config_text == 'a = 1'
    # It can be written again.
    assert reload(loaded) == loaded
    # Nor where a file hides methods: pickle sets an OrderedDict's attributes.
    meta = OrderedDict(config='a = 1')
    meta.pop = meta.keys = HistoryBuffer.mean
    assert reload(OrderedDict(meta=meta))['meta'] == {}


@pytest.fixture(scope='module')
def checkpoint(tmp_path_factory):
    """What a run of one epoch has written."""
    folder = tmp_path_factory.mktemp('trained')
    train(folder, train_cfg__max_epochs=1)
    return torch.load(folder / 'epoch_1.pth')


def resume(folder, content, **settings):
    torch.save(content, folder / 'checkpoint.pth')
    settings = dict(resume=True, load_from='checkpoint.pth') | settings
    return train(folder, train_cfg__max_epochs=1, **settings)


def test_stored_texts_are_not_executed(folder, checkpoint):
    def with_config(value):
        """Wherever MMEngine looks for configs."""
        changed = copy.deepcopy(checkpoint)
        for part in (changed['meta'], changed['message_hub']['runtime_info']):
            part['cfg'] = part['config'] = value
        return changed

    runner = resume(folder, with_config(TEXT))
    assert runner.epoch == 1
    # The run's own, not the checkpoint's.
    assert runner.message_hub.get_info('cfg') == runner.cfg.pretty_text
    with pytest.raises(ValueError, match='Cannot find the config'):
        BaseInferencer._init_model(None, ConfigDict(), 'checkpoint.pth')
    # Not even where the file is trusted.
    config = Config.fromstring('a = 1', '.py')
    with pytest.raises(CheckpointError, match=r'mmengine\.config'):
        resume(folder, with_config(config))
    trust_checkpoints()
    for value in (config, TEXT):
        assert resume(folder, with_config(value)).epoch == 1


@pytest.mark.parametrize('missing', ['meta', 'epoch', 'message_hub'])
def test_no_training_to_resume(folder, checkpoint, missing):
    content = checkpoint['state_dict']
    if missing == 'epoch':
        content = dict(state_dict=content, meta={})
    elif missing == 'message_hub':
        # What MMDetection 2.x would have written.
        meta = dict(epoch=1, iter=4, mmdet_version='2.28.0', config=TEXT)
        content = dict(state_dict=content, meta=meta, optimizer={})
    # By the loader: a stock Runner that imports us is told too.
    told = rf"no '{missing}'.*--cfg-options load_from=checkpoint\.pth$"
    with pytest.raises(CheckpointError, match=told):
        resume(folder, content, default_hooks__resume_report=None)
    # What is meant instead.
    assert resume(folder, content, resume=False).epoch == 1
