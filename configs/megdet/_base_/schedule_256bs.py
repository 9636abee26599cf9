# MegDet's schedule for a mini-batch of 256 images.
#
# TotalBatchHook(total_batch_size=256) makes an update of 256 images on
# whatever hardware, and the update is the iteration: lengths are in updates.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.04, momentum=0.9, weight_decay=0.0001),
    clip_grad=dict(max_norm=35, norm_type=2),
)

param_scheduler = [
    dict(
        type='PreciseLinearWarmup',
        start_factor=0.001,
        by_epoch=False,
        count='updates',
        begin=0,
        end=1000,
    ),
    dict(
        type='MultiStepLR',
        begin=0,
        end=24,
        by_epoch=True,
        milestones=[16, 22],
        gamma=0.1,
    ),
]

train_cfg = dict(type='UpdateTrainLoop', max_epochs=24, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
