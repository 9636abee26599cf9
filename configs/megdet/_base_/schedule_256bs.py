# MegDet's schedule for a mini-batch of 256 images.
#
# 8 GPUs x 4 images x 8 accumulated iterations = 256 images an update. On
# other hardware keep GPUs x images per GPU x accumulative_counts at 256; the
# warm-up counts iterations: 1000 x accumulative_counts of them.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.04, momentum=0.9, weight_decay=0.0001),
    clip_grad=dict(max_norm=35, norm_type=2),
    accumulative_counts=8,
)

param_scheduler = [
    dict(
        type='PreciseLinearWarmup',
        start_factor=0.001,
        by_epoch=False,
        begin=0,
        end=8000,
    ),  # iterations: 1000 updates
    dict(
        type='MultiStepLR',
        begin=0,
        end=24,
        by_epoch=True,
        milestones=[16, 22],
        gamma=0.1,
    ),
]

train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=24, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
