"""The damaged places of a replica's log, until what another replica has there replaces them.

A replica never changes a damaged record by itself: its log would differ from the others', and a follower would take the
change for what was sent. It notes the place, leaves the record out of what it serves, and puts the bytes of another
replica there as soon as it gets them (healing.py).

`pocketmq/damaged.json` keeps the places over restarts: {"version":1,"damaged":[[log offset, end],…]}. A place is one
record whose body does not match its CRC, or bytes that are no records. Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import json
import logging
from typing import Final

from ..proto.errors import StoreError, StoreFull
from .disk import Disk

logger = logging.getLogger(__name__)

PLACES_MAX: Final = 10_000
_NAME: Final = "damaged.json"
_VERSION: Final = 1


class KnownDamage:
    """The damaged places of a log, by log offset. `healed`: how many were replaced since the store was opened.

    A place is `awaited` as long as somebody may bring what stood there: readers wait for it instead of passing it over.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/{_NAME}"
        self.places: dict[int, int] = load_places(disk, folder)
        self.awaited: set[int] = set()
        #: Does anybody bring what is awaited?
        self.has_healer = False
        self.healed = 0
        self._is_changed = False

    def __len__(self) -> int:
        return len(self.places)

    def add(self, start: int, end: int) -> None:
        """Note that the bytes [START, END) are damaged; those that follow a place which ends at START extend it."""
        for known, known_end in self.places.items():
            if known <= start <= known_end and known != start:
                start, end = known, max(end, known_end)
                break
        if len(self.places) >= PLACES_MAX and start not in self.places:
            return
        if self.has_healer and start not in self.places:
            self.awaited.add(start)
        if self.places.get(start, 0) < end:
            self.places[start] = end
            self._is_changed = True

    def awaits(self, log_offset: int) -> bool:
        """Is what stands at LOG_OFFSET damaged, and about to be replaced?"""
        return log_offset in self.awaited or any(
            start <= log_offset < self.places[start] for start in self.awaited
        )

    def covers(self, log_offset: int) -> bool:
        """Is LOG_OFFSET in a damaged place?"""
        return any(start <= log_offset < end for start, end in self.places.items())

    def give_up(self, start: int) -> None:
        """Nobody has what stood at START: readers pass it over."""
        self.awaited.discard(start)

    def shrink(self, start: int, to: int) -> bool:
        """The place at START is healed up to TO; return whether it is healed as a whole."""
        end = self.places.pop(start)
        is_awaited = start in self.awaited
        self.awaited.discard(start)
        self._is_changed = True
        if to >= end:
            self.healed += 1
            return True
        self.places[to] = end
        if is_awaited:
            self.awaited.add(to)
        return False

    def forget(self, begin: int, end: int) -> None:
        """The log begins at BEGIN and ends at END: places outside are gone."""
        for start in [one for one in self.places if not begin <= one < end]:
            del self.places[start]
            self.awaited.discard(start)
            self._is_changed = True

    def save(self) -> None:
        """Write the file, if it lacks anything; what cannot be written is tried again."""
        if not self._is_changed:
            return
        text = json.dumps({"version": _VERSION, "damaged": sorted(self.places.items())})
        try:
            self._disk.make_folders(self._folder)
            self._disk.write_atomically(self._path, text.encode())
        except StoreFull as error:
            logger.warning("damaged places not noted reason=%s", error.message)
            return
        self._is_changed = False


def load_places(disk: Disk, folder: str) -> dict[int, int]:
    """Return the damaged places that FOLDER, our own of a store, tells of; nothing if that cannot be read."""
    path = f"{folder}/{_NAME}"
    try:
        if not disk.exists(path):
            return {}
        document = json.loads(disk.read(path))
        if document["version"] != _VERSION:
            return {}
        places = {int(start): int(end) for start, end in document["damaged"][:PLACES_MAX]}
    except (OSError, StoreError, ValueError, TypeError, KeyError, RecursionError) as error:
        logger.warning("damaged places not read path=%s reason=%s", path, error)
        return {}
    return {start: end for start, end in places.items() if 0 <= start < end < 1 << 63}
