# r50_fpn_256bs.py with activation checkpointing in the backbone: its inner
# activations are computed again in backward instead of kept. Gradients are the
# same; running statistics are updated once; synchronised layers make their
# forward collective twice.
_base_ = './r50_fpn_256bs.py'

model = dict(backbone=dict(with_cp=True))
