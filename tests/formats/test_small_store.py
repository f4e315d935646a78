"""Every byte of a small store, against the layout written out by hand (store-format.md §1–§4)."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from pocketmq.proto.record import Host

from ..runs import Hand, make_run, open_store

NOW = 1_700_000_000_000
BORN = 1_600_000_000_000


def java_hash(text: str) -> int:
    value = 0
    for char in text:
        value = (31 * value + ord(char)) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def record(body: bytes, properties: bytes, queue_offset: int, log_offset: int) -> bytes:
    """Lay out one record of topic T, queue 1, as store-format.md §2.2 numbers the fields."""
    fields = b"".join(
        (
            bytes.fromhex("DAA320A7"),
            struct.pack(">I", zlib.crc32(body) & 0x7FFFFFFF),
            struct.pack(">ii", 1, 0),
            struct.pack(">qq", queue_offset, log_offset),
            struct.pack(">i", 0),
            struct.pack(">q", BORN) + bytes([127, 0, 0, 1]) + struct.pack(">i", 5000),
            struct.pack(">q", NOW) + bytes([10, 0, 0, 7]) + struct.pack(">i", 8081),
            struct.pack(">iq", 0, 0),
            struct.pack(">i", len(body)) + body,
            b"\x01T",
            struct.pack(">h", len(properties)) + properties,
        )
    )
    return struct.pack(">i", 4 + len(fields)) + fields


def test_every_byte_of_a_small_store(tmp_path: Path) -> None:
    store = open_store(
        tmp_path,
        now_ms=Hand(NOW),
        log_file_size_bytes=1024,
        queue_file_size_bytes=100,
        index_slots=5,
        index_entries=10,
    )
    store.host = Host.parse("10.0.0.7", 8081)
    store.append(make_run("T", 1, [b"a" * 400, b"b" * 300], {"KEYS": "k", "TAGS": "TagA"}))
    store.append(make_run("T", 1, [b"c" * 200], {"KEYS": "k l"}))
    store.close()

    first = record(b"a" * 400, b"KEYS\x01k\x02TAGS\x01TagA\x02", 0, 0)
    second = record(b"b" * 300, b"KEYS\x01k\x02TAGS\x01TagA\x02", 1, len(first))
    third = record(b"c" * 200, b"KEYS\x01k l\x02", 2, 1024)
    filled = len(first + second)
    assert len(third) + 8 > 1024 - filled, "the third record must roll the file"
    blank = struct.pack(">i", 1024 - filled) + bytes.fromhex("CBD43194")
    log = tmp_path / "commitlog"
    assert (log / f"{0:020d}").read_bytes() == (first + second + blank).ljust(1024, b"\0")
    assert (log / f"{1024:020d}").read_bytes() == third.ljust(1024, b"\0")

    entries = b"".join(
        struct.pack(">qiq", offset, size, tags)
        for offset, size, tags in (
            (0, len(first), 2598919),
            (len(first), len(second), 2598919),
            (1024, len(third), 0),
        )
    )
    queue = tmp_path / "consumequeue" / "T" / "1" / f"{0:020d}"
    assert queue.read_bytes() == entries.ljust(100, b"\0")

    keys = [("T#k", 0), ("T#T#TagA", 0)]
    keys += [("T#k", len(first)), ("T#T#TagA", len(first)), ("T#k", 1024), ("T#l", 1024)]
    slots, chained = [0] * 5, b""
    for number, (key, offset) in enumerate(keys, start=1):
        key_hash = abs(java_hash(key))
        chained += struct.pack(">iqii", key_hash, offset, 0, slots[key_hash % 5])
        slots[key_hash % 5] = number
    header = struct.pack(">qqqqii", NOW, NOW, 0, 1024, sum(1 for one in slots if one), 7)
    (index,) = (tmp_path / "index").iterdir()
    assert index.read_bytes() == (header + struct.pack(">5i", *slots) + bytes(20) + chained).ljust(
        40 + 20 + 200, b"\0"
    )

    checkpoint = (tmp_path / "checkpoint").read_bytes()
    assert checkpoint == struct.pack(">q", NOW).ljust(4096, b"\0")
    assert (tmp_path / "lock").read_bytes() == b"lock"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint", "commitlog", "consumequeue", "index", "lock", "pocketmq",
    ]  # fmt: skip
