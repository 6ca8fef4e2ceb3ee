"""Keep large CPU buffers: glibc returns every big block to the system when it is freed, and the next step
pays for it in page faults, often more than for the arithmetic. With these settings freed memory stays with
the process and is reused.
"""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's malloc.h
NEVER = 2**31 - 1  # bytes; an int is what mallopt takes
OLD_LIMIT = 32 * 2**20  # the largest mmap threshold that older glibc accepts


def keep_buffers() -> bool:
    """Ask the allocator to keep what is freed; True if it agreed. Without glibc nothing happens."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    trim = mallopt(M_TRIM_THRESHOLD, NEVER)
    mmap = mallopt(M_MMAP_THRESHOLD, NEVER) or mallopt(M_MMAP_THRESHOLD, OLD_LIMIT)
    return bool(trim and mmap)
