"""How the C library treats what a server frees: it keeps some, instead of giving it back and asking for it again.

A broker copies runs of about a mebibyte. The C library of GNU systems takes such pieces from the kernel one by one, and
each comes as pages that are cleared when they are first touched: a third of the CPU time of a fetch. Elsewhere nothing
is done.
"""

from __future__ import annotations

import ctypes
from typing import Final

#: Larger pieces come from the kernel one by one: the largest bound that the library takes.
PIECE_BYTES_MAX: Final = 32 * 1024 * 1024
#: So much free memory at the end of the heap stays with the process.
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024

#: Numbers of <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3


def keep_freed_memory() -> bool:
    """Have this process keep up to KEPT_BYTES_MAX of what it frees; return whether the C library does that."""
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    options = ((_M_MMAP_THRESHOLD, PIECE_BYTES_MAX), (_M_TRIM_THRESHOLD, KEPT_BYTES_MAX))
    return all(set_option(*option) for option in options)
