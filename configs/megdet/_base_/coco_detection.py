# COCO 2017 with boxes, 1333x800 keep-ratio, flip. COCO_ROOT tells where the
# data set lies.
_base_ = 'mmdet::_base_/datasets/coco_detection.py'

data_root = '{{$COCO_ROOT:data/coco}}/'

train_dataloader = dict(
    batch_size=4,
    num_workers=4,
    # Every batch is a full one, and on the usual set-ups an epoch is a whole
    # number of updates: a checkpoint inside an accumulation would lose its
    # gradient (TotalBatchHook warns).
    batch_sampler=dict(type='AspectRatioBatchSampler', drop_last=True),
    dataset=dict(data_root=data_root),
)
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader

val_evaluator = dict(ann_file=data_root + 'annotations/instances_val2017.json')
test_evaluator = val_evaluator
