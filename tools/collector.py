"""What Python's collector looks through in a server: what comes and goes, not the tables that it keeps.

The collector looks for circles of objects that nobody uses any more. A full pass looks at every object, and one comes
whenever a quarter of them is new: with 10,000 topics 35 to 50 ms in which nothing else happens, with 50,000 over 100.
So what a start made is left out of later passes (`gc.freeze`), and so is what is there each time that GROWTH more
topics, groups and queues are kept: a pass costs some 0.35 microseconds for each object that came since.

What is left out goes all the same when nobody refers to it any more. Only circles that were in use at such a moment, of
calls and fetches that waited then, stay when they end: until the next day, when everything is looked through once.
While a server starts nothing is: it makes what stays.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Final

#: So many more topics, groups and queues, of some 10 objects each, are some 7 ms of a pass.
GROWTH: Final = 2_000
DAY_MS: Final = 86_400_000


class Collector:
    """The collector of this process, which is to keep as many topics, groups and queues as KEPT says at any time."""

    def __init__(self, kept: Callable[[], int]) -> None:
        self._kept = kept
        self._left_out = 0
        self._due_ms = 0

    def begin(self) -> None:
        """Look through nothing until `serve`."""
        gc.disable()

    def serve(self, now_ms: int) -> None:
        """Look through what comes from now on; call `tick` every second."""
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
