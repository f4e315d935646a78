"""The memory of a server's process: what the C library keeps of freed memory, and what Python's collector scans.

What the collector leaves out (`gc.freeze`) is freed all the same when nothing refers to it any more. Only cycles that
were in use at such a moment, of calls and fetches that waited then, stay when they end: until the next day, when
everything is scanned once.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Final

#: Larger pieces come from the kernel one by one: the largest limit that the library accepts.
PIECE_BYTES_MAX: Final = 32 * 1024 * 1024
#: So much free memory at the end of the heap stays with the process.
KEPT_BYTES_MAX: Final = 64 * 1024 * 1024

#: Numbers of <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3

#: So many more topics, groups and queues, of about 10 objects each, are about 7 ms of a pass.
GROWTH: Final = 2_000
DAY_MS: Final = 86_400_000


def keep_freed_memory() -> bool:
    """Have this process keep up to KEPT_BYTES_MAX of what it frees; return whether the C library does that.

    A broker copies batches of about a mebibyte. The C library of GNU systems gets such pieces from the kernel one by
    one, and each comes as pages that are cleared when they are first touched: a third of the CPU time of a fetch.
    """
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    options = ((_M_MMAP_THRESHOLD, PIECE_BYTES_MAX), (_M_TRIM_THRESHOLD, KEPT_BYTES_MAX))
    return all(set_option(*option) for option in options)


class Collector:
    """The collector of this process, which keeps as many topics, groups and queues as KEPT returns at any time.

    It looks for cycles of objects that are not used any more. A full pass scans every object, and one runs whenever a
    quarter of them is new: with 10,000 topics 35 to 50 ms in which nothing else happens, with 50,000 over 100. So the
    objects of the start are left out of later passes, and so is everything each time that GROWTH more topics, groups
    and queues are kept: a pass costs about 0.35 µs for each object that was made since.
    """

    def __init__(self, kept: Callable[[], int]) -> None:
        self._kept = kept
        self._left_out = 0
        self._due_ms = 0

    def begin(self) -> None:
        """Scan nothing until `serve` or `end`: a start makes what stays."""
        gc.disable()

    def end(self) -> None:
        """Scan everything again, also after a start that failed: a process may go on without its servers."""
        gc.unfreeze()
        gc.enable()

    def serve(self, now_ms: int) -> None:
        """Scan what is made from now on; call `tick` every second."""
        self._look_through_all(now_ms)
        gc.enable()

    def tick(self, now_ms: int) -> None:
        """Leave out what there is if it has grown; NOW_MS is an instant of a clock that is never set back."""
        kept = self._kept()
        self._left_out = min(self._left_out, kept)
        if now_ms >= self._due_ms:
            self._look_through_all(now_ms)
        elif kept >= self._left_out + GROWTH:
            self._leave_out(kept)

    def _look_through_all(self, now_ms: int) -> None:
        self._due_ms = now_ms + DAY_MS
        gc.unfreeze()
        self._leave_out(self._kept())

    def _leave_out(self, kept: int) -> None:
        gc.collect()
        gc.freeze()
        gc.collect()  # Of nothing: it is a quarter of what this pass found that brings the next one.
        self._left_out = kept
