# Copyright (c) mmdet_megdet contributors. All rights reserved.
# Training on images in files, in COCO's format and by mmdet's own loading,
# with all that looks for faults: one epoch of four updates of four images.
_base_ = './faults_config.py'

custom_imports = dict(
    imports=['tests.data.faulty_task', 'tests.data.image_task']
)
# Where the test says so, of each rank's own.
unequal = int('{{$UNEQUAL:0}}') * int('{{$RANK:0}}')
optim_wrapper = dict(optimizer=dict(lr=0.05 + 0.25 * unequal))
model = dict(_delete_=True, type='TinyDetector', bn_size=None)
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        _delete_=True,
        type='mmdet.CocoDataset',
        data_root='',
        ann_file='annotations.json',
        data_prefix=dict(img='images/'),
        metainfo=dict(classes=('box', 'disc')),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='mmdet.LoadAnnotations', with_bbox=True),
            dict(type='mmdet.PackDetInputs'),
        ],
    ),
    collate_fn=dict(type='pseudo_collate'),
)
val_dataloader = val_cfg = val_evaluator = None
test_dataloader = test_cfg = test_evaluator = None
train_cfg = dict(max_epochs=1)
default_hooks = dict(
    diary=None,
    total_batch=dict(total_batch_size=4),
    checkpoint=dict(save_best=None),
    same_run=dict(type='SameRunHook'),
    data_check=dict(type='DataCheckHook'),
    finite_loss=dict(type='FiniteLossHook'),
    out_of_memory=dict(type='OutOfMemoryHook'),
)
