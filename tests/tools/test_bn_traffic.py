# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""tools/benchmark/bn_traffic.py counts what docs/sync_bn.md says."""

from tests.tools.command import ROOT, TOOLS, run


def test_passes_and_launches_are_those_of_the_docs():
    # Triton reads its variable when it is imported.
    done = run(TOOLS / 'benchmark' / 'bn_traffic.py', cold=True)
    assert done.returncode == 0, done.stdout
    table = [n for n in done.stdout.splitlines() if n.startswith('|')]
    assert len(table) == 12
    docs = (ROOT / 'docs' / 'sync_bn.md').read_text()
    assert '\n'.join(table) in docs
    for line in table[2:]:
        name, *_, passes, launches = (c.strip() for c in line.split('|')[1:-1])
        if name == 'Triton':
            # The limit; and no more launches than were allowed.
            assert (passes, int(launches) <= 14) == ('8', True)
