# COCO 2017 with boxes and masks; all else as in coco_detection.py.
_base_ = './coco_detection.py'

train_pipeline = [
    dict(step, with_mask=True) if step.type == 'LoadAnnotations' else step
    for step in _base_.train_pipeline
]
test_pipeline = [
    dict(step, with_mask=True) if step.type == 'LoadAnnotations' else step
    for step in _base_.test_pipeline
]

train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader

val_evaluator = dict(metric=['bbox', 'segm'])
test_evaluator = val_evaluator
