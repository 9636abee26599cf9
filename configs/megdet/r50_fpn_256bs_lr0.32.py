# r50_fpn_256bs.py with the linear rule's learning rate: 0.02 for 16 images,
# times 256 / 16. It is eight times the recipe's: check the loss of the first
# epochs.
_base_ = './r50_fpn_256bs.py'

optim_wrapper = dict(optimizer=dict(lr=0.32))
