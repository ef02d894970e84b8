"""Tells the C library to keep the memory that requests have freed.

By itself it gives large blocks back to the system at once, and the next request pays for fresh pages: the first touch
of 64 MB costs 16 to 40 ms on the machine of bench/README.md, more than to copy them.
"""

from __future__ import annotations

import ctypes

# malloc.h of the GNU C library.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_TOP_PAD_BYTES = 1 << 20
_INT_MAX = 2**31 - 1


def keep_memory(keep_bytes: int) -> bool:
    """Keep up to so many free bytes, for the whole process; blocks of any size then come out of what is kept.

    Args:
        keep_bytes: >= 1; beyond 2 GiB the C library keeps all.

    Returns:
        Whether the C library took it; False where it has no such settings.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, min(keep_bytes, _INT_MAX)), (_M_TOP_PAD, _TOP_PAD_BYTES))
    return all(mallopt(name, value) for name, value in settings)
