"""Replaces damage in the log, so that the records after it stay readable.

Apache RocketMQ ends the log at the first record that it cannot read. So a damaged record between valid ones must become
one that it can read and does not deliver: a *tombstone*, a record with the transaction type "rolled back", which gets
no queue entry and no key in either broker.

    a record with a wrong body   stays where it is; its type becomes "rolled back", its CRC that of the body
    other bytes                  become the bodies of tombstones of topic `VOID`
    from there to the file's end a blank closes the file

These bytes may contain heads of records with torn bodies, and queue entries that a RocketMQ broker uses may point to
them. So no magic is left in them. Overwritten bytes are saved first, as `<root>/pocketmq/broken/log-<offset>`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import numpy as np

from ..proto.record import (
    CRC_AT,
    FIXED_SIZE_V4,
    SYS_FLAG_AT,
    SYS_ROLLBACK,
    Record,
    body_crc,
    encode_record,
)
from ..proto.record_run import HEAD_SIZE, parse_run
from .disk import Disk
from .files import MappedFile
from .format.log import MAGIC_PATTERN, blank
from .recovery.scan import FileDamage

VOID_TOPIC: Final = "VOID"
#: The maximum size of a tombstone: readers should not have to buffer a gigabyte.
_VOID_SIZE_MAX: Final = 1 << 20
#: Larger parts are not saved; they stay readable in the log.
_SAVED_SIZE_MAX: Final = 64 << 20


class LogRepair:
    """Repairs log files. Overwritten bytes are saved in FOLDER on DISK."""

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder

    def replace(self, file: MappedFile, damage: FileDamage, store_ms: int) -> None:
        """Replace DAMAGE in FILE by a tombstone; STORE_MS is the store time of the record before it."""
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
        """Save the bytes [START, END) of FILE, unless their previous content is saved already."""
        data = file.mapping.read(start, min(max(0, end - start), _SAVED_SIZE_MAX))
        if any(data):
            self._disk.make_folders(self._folder)
            path = os.path.join(self._folder, f"log-{file.start + start:020d}")
            if not self._disk.exists(path):
                self._disk.write_file(path, data)

    def _roll_back(self, file: MappedFile, at: int) -> None:
        head = parse_run(file.view, np.array([at], np.int64))
        body_at, flags = int(head.body_start[0]), int(head.sys_flag[0]) | SYS_ROLLBACK
        crc = body_crc(file.view[body_at : body_at + int(head.body_size[0])])
        file.put(at + SYS_FLAG_AT, flags.to_bytes(4, "big", signed=True))
        file.put(at + CRC_AT, crc.to_bytes(4, "big"))

    def _cover(self, file: MappedFile, start: int, end: int, store_ms: int) -> None:
        """Make a tombstone of [START, END): first write its tail, last its head; the body is not changed."""
        topic = VOID_TOPIC[: end - start - FIXED_SIZE_V4]
        body_start, body_end = start + HEAD_SIZE, end - len(topic) - (FIXED_SIZE_V4 - HEAD_SIZE)
        record = encode_record(
            Record(
                topic=topic,
                body=bytes(file.view[body_start:body_end]),
                sys_flag=SYS_ROLLBACK,
                log_offset=file.start + start,
                born_timestamp_ms=store_ms,
                store_timestamp_ms=store_ms,
            )
        )
        file.put(body_end, record[body_end - start :])
        file.put(start, record[:HEAD_SIZE])


def _unmake_heads(file: MappedFile, start: int, end: int) -> None:
    """Overwrite every magic of a record in [START, END) of FILE."""
    for match in list(MAGIC_PATTERN.finditer(file.view, start, end)):
        file.put(match.start(), VOID_TOPIC.encode())


def _pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > 2 * _VOID_SIZE_MAX:
        yield start, start + _VOID_SIZE_MAX
        start += _VOID_SIZE_MAX
    yield start, end
