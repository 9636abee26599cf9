# Copyright (c) mmdet_megdet contributors. All rights reserved.
"""The private names of torch, MMEngine and MMDetection in use here."""
