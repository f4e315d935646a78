"""The events of a store and their callbacks. The store calls them in its owner's thread."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from ..proto.record_run import RunColumns

#: Called with bytes appended to a follower's log (the last record may be incomplete), the log offset of the first byte,
#: and the columns of the records if they are known.
RecordsListener: TypeAlias = Callable[[bytes, int, RunColumns | None], object]


@dataclass(frozen=True, slots=True)
class StoreEvents:
    """Lists of callbacks, one list per event.

    flushed: everything before this log offset is on disk;
    caught_up: messages of these (topic, queue) were stored before and can be read from now on;
    followed: the log received records from a master.
    """

    flushed: list[Callable[[int], None]] = field(default_factory=list)
    caught_up: list[Callable[[list[tuple[str, int]]], None]] = field(default_factory=list)
    followed: list[RecordsListener] = field(default_factory=list)

    def kept(self) -> StoreEvents:
        """Return a copy of the callbacks, for `restore`."""
        return StoreEvents(list(self.flushed), list(self.caught_up), list(self.followed))

    def restore(self, before: StoreEvents) -> None:
        """Replace all callbacks with those of BEFORE."""
        self.flushed[:] = before.flushed
        self.caught_up[:] = before.caught_up
        self.followed[:] = before.followed
