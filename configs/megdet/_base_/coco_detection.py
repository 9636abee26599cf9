# COCO 2017 with boxes, 1333x800 keep-ratio, flip. COCO_ROOT tells where the
# data set lies.
_base_ = 'mmdet::_base_/datasets/coco_detection.py'

data_root = '{{$COCO_ROOT:data/coco}}/'

train_dataloader = dict(
    batch_size=4,
    num_workers=4,
    # An epoch is a whole number of updates, the same ones on any hardware.
    batch_sampler=dict(type='UpdateBatchSampler'),
    dataset=dict(data_root=data_root),
)
val_dataloader = dict(dataset=dict(data_root=data_root))
test_dataloader = val_dataloader

val_evaluator = dict(ann_file=data_root + 'annotations/instances_val2017.json')
test_evaluator = val_evaluator
