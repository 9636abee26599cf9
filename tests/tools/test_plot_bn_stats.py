# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The figures and the report show what BNStatsMonitorHook wrote."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys

import cv2
import pytest
from mmengine.config import Config
from mmengine.runner import Runner

from mmdet_megdet.monitor import read_records
from tests.data.bn_records import NAMES, finding, record, write
from tests.tools.command import TINY_CONFIG, TOOLS

sys.path.insert(0, str(TOOLS / 'analysis'))  # as for a script there

import plot_bn_stats

NAN = finding('non-finite', 'error', 'NaN in backbone.bn1', [1], 8)
DEAD = finding('dead-channels', 'warning')
RUN = [
    record(100, findings=[NAN, DEAD]),
    record(200),
    record(300, findings=[DEAD]),
]


def plot(work_dir, *options):
    return plot_bn_stats.main([str(work_dir), *map(str, options)])


def test_report(tmp_path, capsys):
    assert plot(write(tmp_path / 'a <run>', RUN)) == 0
    out = tmp_path / 'a <run>' / 'bn_stats'
    assert f'wrote {out}/bn_report.html' in capsys.readouterr().out
    for name in ('between_share', 'drift', 'collectives'):
        assert cv2.imread(str(out / f'{name}.png')).shape[1] == 1500
    page = (out / 'bn_report.html').read_text()
    text = ' '.join(
        re.sub('<style>.*</style>|<[^>]+>', ' ', page, flags=re.S).split()
    )
    for wanted in (
        'a &lt;run&gt; 3 monitored iterations (100 to 300), the last in '
        'epoch 2.',
        'Found: 1 warning. At iteration 300. 1 earlier finding below.',
        'World size 4 Images per GPU 2 Accumulative counts 32',
        'optimizer update 256 Layers monitored 61 BN size (images) '
        'all ranks in 53 layers 4 in 8 layers',
        # Those of the last record come first.
        'warning dead-channels in 2 of 3 records, iterations 100 to 300 '
        '&lt;b&gt;bold&lt;/b&gt; &amp; &#34;quoted&#34; error non-finite',
        'in 1 of 3 records, iteration 100; not in the last '
        'NaN in backbone.bn1 Layers: backbone.bn1 ,',
        'and 2 more. Rank: 1.',
        'Syncing does most for neck.fpn_convs.3.bn: 60 %',
        'The median layer has 30 %',
        'Rank 2 waits least, 10 ms in a median iteration; the others wait 50',
        'Collectives take 5 % of the iteration on one rank, up to 25 % on',
    ):
        assert wanted in text
    gains, layers = re.findall('<tbody>(.*?)</tbody>', page, re.S)
    assert re.findall('<code>(.*?)</code>', gains) == NAMES[:-11:-1]
    assert re.findall('<code>(.*?)</code>', layers) == NAMES
    # Nothing from elsewhere.
    assert re.findall(r'(?:src|href)="(.{9})', page) == ['data:imag'] * 3
    assert not re.search(r'https?:|<script|@import|url\(', page)


@pytest.mark.parametrize(
    ('contents', 'wanted'),
    [
        ([record(100, NAMES[:1])], 'Syncing does most for'),
        ([record(100, NAMES[:1], state='alone')], 'Syncing would do most for'),
        (
            [record(100, NAMES[:1], 1, between_share=None, var_spread=None)],
            'No layer was called on more than one rank',
        ),
        (
            [record(100, NAMES[:1], mean_drift=None, var_drift=None)],
            'No layer has running statistics',
        ),
        ([record(100, [])], 'No layer was called'),
    ],
    ids=['one record', 'alone', 'one rank', 'no drift', 'no layer'],
)
def test_little_to_show(tmp_path, contents, wanted):
    assert plot(write(tmp_path, contents), '--out', tmp_path / 'b/c') == 0
    page = (tmp_path / 'b' / 'c' / 'bn_report.html').read_text()
    assert wanted in page
    assert 'No finding: every check passed.' in page


def test_nothing_to_show(tmp_path, capsys):
    """tests/monitor has what may be wrong with the file."""
    assert plot(tmp_path / 'absent') == 1
    assert 'absent: no such folder' in capsys.readouterr().err
    assert plot(write(tmp_path, [], '{"version"')) == 1
    assert 'error: ' in capsys.readouterr().err
    assert not (tmp_path / 'bn_stats').exists()


def test_hook_writes_what_is_read(tmp_path):
    cfg = Config.fromfile(TINY_CONFIG)
    cfg.work_dir, cfg.experiment_name = str(tmp_path), 'plot_bn_stats'
    cfg.train_dataloader.num_workers = 0
    cfg.train_cfg.max_epochs = 1
    cfg.default_hooks.bn_stats = dict(type='BNStatsMonitorHook', interval=4)
    Runner.from_cfg(cfg).train()
    assert plot(tmp_path) == 0
    loaded = read_records(tmp_path)
    assert [r.iter for r in loaded] == [1, 4, 8]
    assert [(x.name, x.state) for x in loaded[0].layers] == [('norm', 'alone')]
    assert loaded[0].images_per_gpu == 4


BROWSER = next(
    filter(None, map(shutil.which, ('chromium', 'google-chrome'))), None
)
# The figures' widths, by how much the page is wider than the window, and
# the requests made for it.
MEASURE = """<script>addEventListener('load', () => document.body.append(
'measured=' + JSON.stringify([[...document.images].map(i => i.naturalWidth),
document.documentElement.scrollWidth - innerWidth,
performance.getEntriesByType('resource').map(entry => entry.name)
]) + ';'))</script>"""


@pytest.mark.nightly
@pytest.mark.skipif(BROWSER is None, reason='needs chromium')
def test_report_in_a_browser(tmp_path):
    assert plot(write(tmp_path, RUN)) == 0
    page = tmp_path / 'bn_stats' / 'bn_report.html'
    page.write_text(page.read_text().replace('</body>', f'{MEASURE}</body>'))
    done = subprocess.run(
        [
            BROWSER,
            '--headless',
            '--no-sandbox',  # which root is not allowed
            '--disable-gpu',
            '--disable-dev-shm-usage',
            f'--user-data-dir={tmp_path / "profile"}',
            # Nothing is asked for, whatever the page says.
            '--host-resolver-rules=MAP * ~NOTFOUND',
            '--enable-logging=stderr',
            '--window-size=1200,900',
            '--dump-dom',
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ':CONSOLE' not in done.stderr
    widths, too_wide, requests = json.loads(
        re.search(r'measured=(\[.*\]);<', done.stdout).group(1)
    )
    assert widths == [1500, 1500, 1500]
    assert too_wide <= 0
    assert requests == []
