"""Damage in the log of a replica, which is replaced by what another replica has at the same place.

A replica never makes a damaged record harmless by changing it: its log would differ from the others', and whoever
follows it would take the change for what was sent. It notes the place, leaves the record out of what it serves, and
puts the bytes of a healthy replica there as soon as it gets them.

`pocketmq/damaged.json` keeps the places over restarts: {"version":1,"damaged":[[log offset, end],…]}. A place is one
record whose body does not fit its CRC, or bytes that are no records. Bound: `PLACES_MAX`; what is found beyond that is
counted as one more, and found again later.

Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import json
import logging
from typing import Final, NamedTuple

from ..proto.errors import CorruptRecord, StoreError, StoreFull
from ..proto.record_run import RunColumns, crc_mismatches, parse_run, walk
from .commit_log import CommitLog
from .disk import Disk
from .format.log_and_queues import BLANK_SIZE, is_blank

logger = logging.getLogger(__name__)

PLACES_MAX: Final = 10_000
#: Whole records are handed to another replica up to so many bytes at once; one record may be larger.
PIECE_BYTES: Final = 1_048_576
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


# ---------------------------------------------------------------- what replicas give each other


class Piece(NamedTuple):
    """Whole sound records from a place of the log on, or the blank that closes the file there."""

    data: bytes
    columns: RunColumns


def whole_piece(log: CommitLog, offset: int, size_max: int) -> Piece | None:
    """Return what LOG has from OFFSET on, where a record or a blank begins: at most SIZE_MAX bytes, or one record.

    None: it does not have that. Raises CorruptRecord if it is damaged here, too.
    """
    file = log.files.file_at(offset)
    if file is None or offset >= log.max_offset:
        return None
    at = offset - file.start
    size = log.record_size(offset)
    view = file.view[: file.position]
    if size is None:
        data = bytes(view[at : at + BLANK_SIZE])
    else:
        _, end = walk(view, at, min(file.position, at + max(size_max, size)))
        data = bytes(view[at:end])
    return checked_piece(data, offset, file.size - at)


def checked_piece(data: bytes, offset: int, room: int) -> Piece:
    """Return DATA, which is to stand at OFFSET of a log, where ROOM bytes are left of the file.

    The records in front of the first that is damaged count. Raises CorruptRecord if the first one is.
    """
    starts, end = walk(data)
    columns = parse_run(data, starts)
    if not len(columns) and len(data) == BLANK_SIZE and is_blank(data, 0, room):
        return Piece(data, columns)
    good = columns.well_formed & (columns.log_offset == starts + offset)
    if len(columns):
        good[good] &= ~crc_mismatches(data, columns.take(good))
    count = len(good) if good.all() else int(good.argmin())
    end = end if count == len(good) else int(starts[count])
    if not count or end > room:
        raise CorruptRecord(f"the log is damaged at {offset:,}", offset=offset)
    return Piece(data[:end], columns.take(slice(0, count)))
