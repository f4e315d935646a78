"""Making damage in the log harmless without throwing away what follows it.

Apache ends the log at the first record that it cannot read. So a damaged record between sound ones must become one
that it can read and does not deliver: a *void*, a record with the transaction type "rolled back", which gets no queue
entry and no key in either broker.

    a record with a wrong body   stays where it is; its type becomes "rolled back", its CRC that of the body
    other bytes                  are covered by voids of topic `VOID`, whose bodies they are
    from there to the file's end a blank closes the file

Covered bytes may hold heads of records whose bodies are torn, and queue entries that an Apache broker goes by may point
to them: no magic is left in them, so that nobody takes them for records.

What is overwritten is saved first: `<root>/pocketmq/broken/log-<offset>` holds the bytes as they were.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from typing import Final

from ...proto.record import (
    BORN_HOST_AT,
    CRC_AT,
    CRC_MASK,
    MAGIC_V1,
    SYS_FLAG_AT,
    SYS_ROLLBACK,
    hosts_extra,
)
from ..disk import Disk
from ..files import MappedFile
from ..format.log_file import MAGIC_PATTERN, blank
from .scan import Damage

VOID_TOPIC: Final = b"VOID"
_HEAD = struct.Struct(">iiiiiqqiq8sq8siqi")
#: Of a void, but for body and topic: head, topic length, properties length.
_FIXED_SIZE: Final = 91
_INT = struct.Struct(">i")
#: No reader should have to hold a void of a gigabyte.
_VOID_SIZE_MAX: Final = 1 << 20
#: More than this is not copied aside; it stays readable in the log.
_SAVED_SIZE_MAX: Final = 64 << 20


class LogRepair:
    """Repairs log files; what is overwritten goes to FOLDER on DISK."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder

    def void(self, file: MappedFile, damage: Damage, store_ms: int) -> None:
        """Make DAMAGE in FILE harmless; STORE_MS is the store time of the record before it."""
        self.keep(file, damage.start, damage.end)
        if damage.is_framed:
            self._roll_back(file, damage.start)
            return
        _unmake_heads(file, damage.start, damage.end)
        for start, end in _pieces(damage.start, damage.end):
            self._cover(file, start, end, store_ms)

    def close_file(self, file: MappedFile, at: int) -> None:
        """End FILE at AT with a blank."""
        end = file.mapping.data_end(at, file.size)
        self.keep(file, at, end)
        _unmake_heads(file, at, end)
        file.put(at, blank(file.size - at))

    def keep(self, file: MappedFile, start: int, end: int) -> None:
        """Save the bytes [START, END) of FILE aside, unless what was there is kept already."""
        data = file.mapping.read(start, min(max(0, end - start), _SAVED_SIZE_MAX))
        if any(data):
            self._disk.make_folders(self._folder)
            path = os.path.join(self._folder, f"log-{file.start + start:020d}")
            if not self._disk.exists(path):
                self._disk.write_file(path, data)

    def _roll_back(self, file: MappedFile, at: int) -> None:
        (flags,) = _INT.unpack_from(file.view, at + SYS_FLAG_AT)
        place = at + BORN_HOST_AT + 8 + 8 + 8 + 4 + 8
        place += hosts_extra(flags)
        (size,) = _INT.unpack_from(file.view, place)
        crc = zlib.crc32(file.view[place + 4 : place + 4 + size]) & CRC_MASK
        file.put(at + SYS_FLAG_AT, _INT.pack(flags | SYS_ROLLBACK))
        file.put(at + CRC_AT, _INT.pack(crc))

    def _cover(self, file: MappedFile, start: int, end: int, store_ms: int) -> None:
        topic = VOID_TOPIC[: end - start - _FIXED_SIZE]
        tail = bytes((len(topic),)) + topic + b"\0\0"
        body_start, body_end = start + _HEAD.size, end - len(tail)
        crc = zlib.crc32(file.view[body_start:body_end]) & CRC_MASK if body_end > body_start else 0
        host = bytes(8)
        head = _HEAD.pack(
            end - start,
            MAGIC_V1,
            crc,
            0,
            0,
            0,
            file.start + start,
            SYS_ROLLBACK,
            store_ms,
            host,
            store_ms,
            host,
            0,
            0,
            body_end - body_start,
        )
        file.put(body_end, tail)
        file.put(start, head)


def _unmake_heads(file: MappedFile, start: int, end: int) -> None:
    """Overwrite every magic of a record in [START, END) of FILE."""
    for match in list(MAGIC_PATTERN.finditer(file.view, start, end)):
        file.put(match.start(), VOID_TOPIC)


def _pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > 2 * _VOID_SIZE_MAX:
        yield start, start + _VOID_SIZE_MAX
        start += _VOID_SIZE_MAX
    yield start, end
