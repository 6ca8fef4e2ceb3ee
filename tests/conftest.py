"""What every test shares: one thread, for sums that always come out the same; and patient hypothesis."""

import os

# Some virtual machines announce AMX tiles and die of "Illegal instruction" at the first bfloat16 matmul.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("srmlab", deadline=None, derandomize=True)
settings.load_profile("srmlab")
