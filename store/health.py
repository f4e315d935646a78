"""May the store be written to, and if not, why: open, full, failed or closed."""

from __future__ import annotations

import logging

from ..proto.errors import DiskFailure, StoreClosed, StoreError, StoreFull

logger = logging.getLogger(__name__)


class Health:
    """What stands in the way of writing. A failure stays until the store is opened again; being full passes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.failure: StoreError | None = None
        self.full: str | None = None
        self.read_only = False
        self.closed = False

    @property
    def state(self) -> str:
        """Return "open", "read-only", "full", "failed" or "closed"."""
        if self.closed:
            return "closed"
        if self.failure is not None:
            return "failed"
        if self.read_only:
            return "read-only"
        return "full" if self.full is not None else "open"

    def check_open(self) -> None:
        """Raise StoreClosed for a store that was closed."""
        if self.closed:
            raise StoreClosed(f"the store {self._path} is closed", path=self._path)

    def check_writable(self) -> None:
        """Raise what a writer of messages has to be told, if anything."""
        if self.closed or self.failure or self.read_only or self.full:
            self.check_changeable()
            raise StoreFull(self.full or "", path=self._path)

    def check_changeable(self) -> None:
        """Raise what stands in the way of any change; a full disk does not: deleting makes room."""
        self.check_open()
        if self.failure is not None:
            raise DiskFailure(
                f"the store takes no more writes: {self.failure.message}",
                path=self._path,
                reason=self.failure.message,
            )
        if self.read_only:
            raise StoreClosed(f"the store {self._path} was opened read-only", path=self._path)

    def fail(self, error: StoreError) -> None:
        """Stop all writing for good: after ERROR it is unknown what is on the device."""
        if self.failure is None:
            self.failure = error
            logger.error("the store failed", extra={"path": self._path, "reason": error.message})

    def set_full(self, reason: str | None) -> None:
        """Refuse writes for REASON, or take them again."""
        if reason != self.full:
            event = "writes are refused" if reason else "writes are taken again"
            logger.warning(event, extra={"path": self._path, "reason": reason})
        self.full = reason
