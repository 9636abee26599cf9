# MegDet's recipe without the model and the data: the schedule, the hooks, and
# 256 images an update. Put it under a model and a data set; where the model's
# norm layers are MegDetSyncBN, their bn_size is the BN size.
_base_ = ['./schedule_256bs.py', './runtime.py']

# Gradients are accumulated until an update has 256 images, whatever the number
# of GPUs and the images on each (--images-per-gpu N).
default_hooks = dict(
    total_batch=dict(type='TotalBatchHook', total_batch_size=256)
)

# Seconds. A rank may wait this long for the others in a collective.
env_cfg = dict(dist_cfg=dict(backend='nccl', timeout=1800))
