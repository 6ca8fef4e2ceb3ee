"""Peak FLOP/s of the machine, in one large matrix product: the denominator of MFU."""

from __future__ import annotations

import time

import torch


def measure_peak(device: torch.device, dtype: torch.dtype = torch.float32, seconds: float = 0.2) -> float:
    """FLOP/s of the best of a few square matrix products."""
    size = 8192 if device.type == "cuda" else 1024
    a = torch.randn(size, size, device=device, dtype=dtype)
    best, end = 0.0, time.perf_counter() + seconds
    torch.mm(a, a)
    while time.perf_counter() < end or best == 0.0:
        _wait(device)
        start = time.perf_counter()
        torch.mm(a, a)
        _wait(device)
        best = max(best, 2 * size**3 / (time.perf_counter() - start))
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
