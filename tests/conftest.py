"""What every test shares: one thread, for sums that always come out the same; and patient hypothesis."""

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("srmlab", deadline=None, derandomize=True)
settings.load_profile("srmlab")
