"""The health of a store: whether it accepts reads, writes, or neither, and why.

A failure is final until the store is opened again. A full disk is temporary.
"""

from __future__ import annotations

import logging

from ..proto.errors import DiskFailure, StoreClosed, StoreError, StoreFull, StoreMismatch
from ..proto.facts import Facts

logger = logging.getLogger(__name__)


class StoreHealth:
    """Whether a store can be read and written."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.failure: StoreError | None = None
        self.full: str | None = None
        self.read_only = False
        self.closed = False
        #: Does the log accept bytes from a master only?
        self.following = False

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
        """Raise StoreClosed if the store is closed."""
        if self.closed:
            raise StoreClosed(f"the store {self._path} is closed", path=self._path)

    def check_writable(self) -> None:
        """Raise the error that prevents appending messages, if any."""
        if self.closed or self.failure or self.read_only or self.full or self.following:
            self.check_followable()
            raise StoreMismatch(
                f"the store {self._path} follows a master's log: messages are sent to the master",
                path=self._path,
            )

    def check_followable(self) -> None:
        """Raise the error that prevents following a master, if any."""
        self.check_changeable()
        if self.full is not None:
            raise StoreFull(self.full, path=self._path)

    def check_changeable(self) -> None:
        """Raise the error that prevents any change. A full disk does not: deleting frees space."""
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
        """Stop all writing. After ERROR it is unknown what is on disk."""
        if self.failure is None:
            self.failure = error
            logger.error("store failed %s", Facts(path=self._path, reason=error.message))

    def close(self) -> None:
        """Refuse all operations."""
        self.closed = True

    def follow(self) -> None:
        """Accept bytes from a master only."""
        self.following = True

    def lead(self) -> None:
        """Accept messages again."""
        self.following = False

    def set_full(self, reason: str | None) -> None:
        """Refuse writes for REASON. With None, accept them again."""
        if reason != self.full:
            event = "writes refused" if reason else "writes accepted again"
            logger.warning("%s %s", event, Facts(path=self._path, reason=reason))
        self.full = reason
