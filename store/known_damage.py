"""The damaged places of a replica's log, until the bytes of another replica replace them.

A replica never changes a damaged record by itself: its log would differ from the others', and a follower would copy the
change as if the master had sent it. It notes the place, does not serve the record, and replaces it by the bytes of
another replica as soon as it receives them (healing.py).

`pocketmq/damaged.json` keeps the places over restarts: {"version":1,"damaged":[[log offset, end],…]}. A place is one
record whose body does not match its CRC, or bytes that are not records. Not thread-safe: the store's owner calls it.
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

    A place is `awaited` as long as another replica may have its bytes: readers wait instead of skipping it.
    """

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._path = f"{folder}/{_NAME}"
        self.places: dict[int, int] = load_places(disk, folder)
        self.awaited: set[int] = set()
        #: Is there a component that requests awaited places?
        self.has_healer = False
        self.healed = 0
        self._is_changed = False

    def __len__(self) -> int:
        return len(self.places)

    def add(self, start: int, end: int) -> None:
        """Note that the bytes [START, END) are damaged. They extend a place that ends at START."""
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
        """Is LOG_OFFSET damaged, and may it still be replaced?"""
        return log_offset in self.awaited or any(
            start <= log_offset < self.places[start] for start in self.awaited
        )

    def covers(self, log_offset: int) -> bool:
        """Is LOG_OFFSET in a damaged place?"""
        return any(start <= log_offset < end for start, end in self.places.items())

    def give_up(self, start: int) -> None:
        """Note that no replica has the bytes at START: readers skip them."""
        self.awaited.discard(start)

    def shrink(self, start: int, to: int) -> bool:
        """Note that the place at START is healed up to TO; return whether it is completely healed."""
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
        """Forget places outside of the log, which begins at BEGIN and ends at END."""
        for start in [one for one in self.places if not begin <= one < end]:
            del self.places[start]
            self.awaited.discard(start)
            self._is_changed = True

    def save(self) -> None:
        """Write the file, unless it is up to date. If that fails, the next call tries again."""
        if not self._is_changed:
            return
        text = json.dumps({"version": _VERSION, "damaged": sorted(self.places.items())})
        try:
            self._disk.make_folders(self._folder)
            self._disk.write_atomically(self._path, text.encode())
        except StoreFull as error:
            logger.warning("damaged places not saved reason=%s", error.message)
            return
        self._is_changed = False


def load_places(disk: Disk, folder: str) -> dict[int, int]:
    """Return the damaged places in the file in FOLDER, PocketMQ's folder of a store; none if it cannot be read."""
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
