# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""Registries of the scope ``mmdet_megdet``, for MMEngine to find by name.

What a config takes over from ``_base_ = 'mmdet_megdet::...'`` is built in the
scope ``mmdet_megdet``, whose registries MMEngine expects here. Each is an
empty child of mmdet's of the same name, and finds what mmdet's configs find.
"""

import mmdet.registry
from mmdet.utils import register_all_modules
from mmengine.registry import Registry

# A child does not make its parent import its components.
register_all_modules(init_default_scope=False)

for _name, _parent in list(vars(mmdet.registry).items()):
    if isinstance(_parent, Registry) and _parent.scope == 'mmdet':
        globals()[_name] = Registry(
            _parent.name,
            parent=_parent,
            scope='mmdet_megdet',
            locations=['mmdet_megdet'],
        )
