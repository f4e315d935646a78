"""A master's log as frames, and stores compared byte by byte."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from pathlib import Path

from pocketmq.store.format.index import ENTRY, HEADER_SIZE, SLOT, IndexHeader
from pocketmq.store.message_store import MessageStore

from ..runs import Hand, make_run, small_config

QUEUES = [("A", 0), ("A", 1), ("B", 0), ("SCHEDULE_TOPIC_XXXX", 2)]


def send(master: MessageStore, rng: random.Random, clock: Hand, count: int) -> None:
    """Append COUNT runs of a few records, of any size up to a file's."""
    for _ in range(count):
        clock.now_ms += rng.randint(0, 900)
        topic, queue = rng.choice(QUEUES)
        bodies = [
            rng.randbytes(rng.choice([1, 10, 200, 1500])) for _ in range(rng.choice([1, 1, 3, 12]))
        ]
        pairs = {"KEYS": f"k{rng.randint(0, 50)} all", "TAGS": "t"}
        if topic.startswith("SCHEDULE"):
            pairs |= {"DELAY": "3", "REAL_TOPIC": "A", "REAL_QID": "0"}
        master.append(make_run(topic, queue, bodies, pairs))


def raw(master: MessageStore, offset: int, size: int) -> bytes:
    """Return at most SIZE bytes of MASTER's log at OFFSET, of one file, as they are."""
    file = master.log.files.file_at(offset)
    assert file is not None
    at = offset - file.start
    return file.read(at, min(size, file.position - at))


def frames(master: MessageStore, rng: random.Random, begin: int) -> Iterator[tuple[bytes, int]]:
    """Yield all bytes of MASTER's log from BEGIN on, in cuts at any place."""
    at = begin
    while at < master.max_log_offset:
        data = raw(master, at, rng.choice([1, 7, 100, 1000, 5000]))
        yield data, at
        at += len(data)


def take(follower: MessageStore, data: bytes, offset: int) -> None:
    follower.append_raw(data, offset, zlib.crc32(data))


def feed(master: MessageStore, follower: MessageStore, rng: random.Random) -> None:
    """Give FOLLOWER everything that it lacks of MASTER's log."""
    for data, at in frames(master, rng, follower.raw_end):
        take(follower, data, at)
    assert follower.raw_end == follower.max_log_offset == master.max_log_offset


def rows(path: Path, kind: str) -> dict[str, bytes]:
    """Return the bytes of the files of KIND that hold any; index files by their order, for their names are times."""
    found = {
        str(one.relative_to(path)): data
        for one in sorted((path / kind).rglob("*"))
        if one.is_file() and any(data := one.read_bytes())
    }
    if kind == "index":
        return {str(number): data for number, data in enumerate(found.values())}
    return found


def keys(path: Path) -> list[tuple[int, int, int]]:
    """Return hash, log offset and seconds of all keys in the index, in order of these."""
    found: list[tuple[int, int, int]] = []
    slots = small_config(path).index_slots
    for data in rows(path, "index").values():
        count = IndexHeader.parse(data).next_entry - 1
        at = HEADER_SIZE + slots * SLOT.size + ENTRY.size
        entries = ENTRY.columns(data, count, at=at)
        found += [(key, offset, second) for key, offset, second, _ in entries.tolist()]
    return sorted(found)


def assert_equal(one: Path, other: Path, *, crashed: bool = False) -> None:
    """Log, queues and index of ONE are those of OTHER, byte by byte.

    CRASHED: the keys of one record may be in another order in the index, for some of them were entered again.
    """
    if crashed:
        assert keys(one) == keys(other) != []
    for kind in ("commitlog", "consumequeue", *(() if crashed else ("index",))):
        mine, others = rows(one, kind), rows(other, kind)
        assert mine.keys() == others.keys(), kind
        for name, data in mine.items():
            assert data == others[name], (kind, name)
