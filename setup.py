# Copyright (c) mmdet_megdet contributors. All rights reserved.
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# What lies outside the package and belongs to it once it is installed, in the
# folder where mim and MMEngine's `mmdet_megdet::` look.
MIM = ('configs', 'tools', 'model-index.yml')


def not_installed(folder: str, names: list[str]) -> set[str]:
    """Names that serve the repository and its .venv alone, and caches."""
    if Path(folder).name == 'setup':
        return set(names) - {'check_mmcv.py'}  # of tools/doctor.py
    return {'demo.sh', '__pycache__'} & set(names)


class BuildWithMim(build_py):
    """Builds the package and its ``.mim``; linked, if it is editable."""

    def run(self) -> None:
        super().run()
        base = ROOT if self.editable_mode else Path(self.build_lib)
        mim = base / 'mmdet_megdet' / '.mim'
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir(parents=True)
        for name in MIM:
            if self.editable_mode:
                (mim / name).symlink_to(Path('..', '..', name))
            elif (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, mim / name, ignore=not_installed)
            else:
                shutil.copy2(ROOT / name, mim / name)


# All else stands in pyproject.toml.
setup(cmdclass={'build_py': BuildWithMim})
