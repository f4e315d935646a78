"""The stores that benches read.

    queues     10 M entries in four queues of nine files each; of the log only the last file holds its records
    messages   1 M records of 157 B in three log files, four queues
    lag        the same over 10,000 queues, with three groups at different places in each
    lookup     an index file that is full, 19,999,999 keys; of the log only the last file holds its records
    huge       100 GiB of log in 101 files, and their queue: records of 4 MiB whose bodies are holes

All were stopped cleanly. A log file that holds no records reads as zeros, as does one on a device that lost it: readers
of queues and index never look there, and recovery begins at the last file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import numpy as np

from ....proto.java_hash import java_hash
from ....proto.properties import KEYS, TAGS
from ....proto.record import (
    LOG_OFFSET_AT,
    MAGIC_BLANK,
    QUEUE_OFFSET_AT,
    STORE_TIMESTAMP_AT,
    Host,
    Record,
    encode_record,
)
from .files import (
    BLANK,
    QUEUE_ENTRY,
    write_index,
    write_log,
    write_queues,
    write_state,
    write_tables,
)
from .traffic import BLANK_SIZE, FIRST_MS, Traffic

#: Apache's sizes.
QUEUE_FILE_BYTES: Final = 6_000_000
INDEX_SLOTS: Final = 5_000_000
INDEX_ENTRIES: Final = 20_000_000

QUEUES: Final = Traffic(count=10_000_000)
MESSAGES: Final = Traffic(count=1_000_000)
LAG: Final = Traffic(count=1_000_000, topics=100, queues=100)
LOOKUP: Final = Traffic(count=INDEX_ENTRIES - 1)
GROUPS: Final = 3

HUGE_BODY_BYTES: Final = 4 * 1024 * 1024 - 1024
HUGE_TOPIC: Final = "Huge"
_HUGE_FILE_BYTES: Final = 1 << 30
_HUGE_TAG: Final = "TagA"


def queue_store(root: Path, traffic: Traffic = QUEUES) -> Path:
    """Write into ROOT a store for scans of queues; return ROOT."""
    return _write(root, traffic, log_files=1)


def message_store(root: Path, traffic: Traffic = MESSAGES) -> Path:
    """Write into ROOT a store for scans of messages; return ROOT."""
    return _write(root, traffic)


def lag_store(root: Path, traffic: Traffic = LAG) -> Path:
    """Write into ROOT a store with many queues and groups; return ROOT."""
    return _write(root, traffic)


def lookup_store(
    root: Path,
    traffic: Traffic = LOOKUP,
    *,
    slots: int = INDEX_SLOTS,
    entries: int = INDEX_ENTRIES,
) -> Path:
    """Write into ROOT a store with one full index file of SLOTS and ENTRIES; return ROOT."""
    _write(root, traffic, log_files=1)
    write_index(root / "index", traffic, slots=slots, entries=entries)
    return root


def _write(root: Path, traffic: Traffic, *, log_files: int | None = None) -> Path:
    write_log(root / "commitlog", traffic, files_written=log_files)
    write_queues(root / "consumequeue", traffic, file_bytes=QUEUE_FILE_BYTES)
    write_tables(root, traffic, groups=GROUPS)
    return root


def huge_store(root: Path, size_bytes: int = 100 << 30) -> Path:
    """Write into ROOT a store with SIZE_BYTES of log, nearly all of it holes; return ROOT."""
    record = _huge_record()
    size = len(record)
    per_file = (_HUGE_FILE_BYTES - BLANK_SIZE) // size
    count = size_bytes // size
    (root / "commitlog").mkdir(parents=True)
    for base in range(0, count, per_file):
        number = base // per_file
        path = root / "commitlog" / f"{number * _HUGE_FILE_BYTES:020d}"
        _write_huge_file(path, record, range(base, min(base + per_file, count)), count)
    numbers = np.arange(count, dtype=np.int64)
    entries = np.zeros(count, QUEUE_ENTRY)
    entries["log_offset"] = numbers // per_file * _HUGE_FILE_BYTES + numbers % per_file * size
    entries["size"] = size
    entries["tags_code"] = java_hash(_HUGE_TAG)
    queue = root / "consumequeue" / HUGE_TOPIC / "0"
    queue.mkdir(parents=True)
    with (queue / f"{0:020d}").open("wb") as file:
        file.write(entries.tobytes())
        file.truncate(QUEUE_FILE_BYTES)
    last_offset = int(entries["log_offset"][-1])
    write_state(root, {HUGE_TOPIC: 1}, {}, last_ms=FIRST_MS + count - 1, last_offset=last_offset)
    return root


def _huge_record() -> bytearray:
    host = Host.parse("127.0.0.1", 10911)
    return bytearray(
        encode_record(
            Record(
                topic=HUGE_TOPIC,
                body=bytes(HUGE_BODY_BYTES),
                born_timestamp_ms=FIRST_MS,
                born_host=host,
                store_host=host,
                properties={TAGS: _HUGE_TAG, KEYS: "huge"},
            )
        )
    )


def _write_huge_file(path: Path, record: bytearray, numbers: range, count: int) -> None:
    """Write the records NUMBERS of COUNT, without their bodies."""
    head, tail = 88, len(record) - 88 - HUGE_BODY_BYTES
    size = len(record)
    base = int(path.name)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.truncate(descriptor, _HUGE_FILE_BYTES)
        for place, number in enumerate(numbers):
            at = place * size
            for field_at, value in (
                (QUEUE_OFFSET_AT, number),
                (LOG_OFFSET_AT, base + at),
                (STORE_TIMESTAMP_AT, FIRST_MS + number),
            ):
                record[field_at : field_at + 8] = value.to_bytes(8)
            os.pwrite(descriptor, record[:head], at)
            os.pwrite(descriptor, record[-tail:], at + size - tail)
        if numbers.stop < count:
            end = len(numbers) * size
            os.pwrite(descriptor, BLANK.pack(_HUGE_FILE_BYTES - end, MAGIC_BLANK), end)
    finally:
        os.close(descriptor)
