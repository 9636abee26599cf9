# Copyright (c) mmdet_megdet contributors. All rights reserved.
import shutil
from pathlib import Path

from setuptools import find_packages, setup
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


def version() -> str:
    """The package's version, without importing the package (and torch)."""
    names = {}
    exec((ROOT / 'mmdet_megdet' / 'version.py').read_text(), names)
    return names['__version__']


def readme() -> str:
    path = ROOT / 'README.md'
    return path.read_text(encoding='utf-8') if path.is_file() else ''


setup(
    name='mmdet-megdet',
    version=version(),
    description='Large-batch detector training after MegDet, as a plugin for '
    'stock MMDetection 3.x',
    long_description=readme(),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    python_requires='>=3.10,<3.13',
    packages=find_packages(include=['mmdet_megdet', 'mmdet_megdet.*']),
    # torch and the OpenMMLab libraries are not asked for here: whoever uses
    # a fork or a build of their own must not get a second copy over it.
    install_requires=['msgspec', 'numpy', 'rich'],
    extras_require={
        # mmengine and mmcv import pkg_resources, gone from setuptools 82.
        'openmmlab': [
            'torch>=2.6',
            'mmengine>=0.10.7,<1',
            'mmcv>=2.1.0,<2.2.0',
            'mmdet>=3.3.0,<4',
            'setuptools<81',
        ],
        'dev': [
            'hypothesis',
            'onnxruntime',
            'onnxscript',
            'pre-commit',
            'psutil',
            'pytest',
            'pytest-xdist',
            'ruff',
            'tensorboard',
            "triton==3.7.1; sys_platform == 'linux'",
        ],
    },
    cmdclass={'build_py': BuildWithMim},
    zip_safe=False,
)
