"""Runs of records and small stores for tests of the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import Host, Record, decode_record, encode_record, encode_run
from pocketmq.proto.run import Run, check_run
from pocketmq.store.config import StoreConfig
from pocketmq.store.disk import Disk
from pocketmq.store.flush import Flusher, FlushJob
from pocketmq.store.log_writer import Appended
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

BORN = Host.parse("127.0.0.1", 5000)


class Hand:
    """A clock that a test turns."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class Device(Flusher):
    """Does one job after another, each when it is told to."""

    def __init__(self) -> None:
        super().__init__("by hand")
        self.jobs: list[FlushJob] = []

    def submit(self, job: FlushJob) -> None:
        self.jobs.append(job)

    def do_next(self) -> None:
        if self.jobs:
            super().submit(self.jobs.pop(0))


def make_run(
    topic: str,
    queue: int,
    bodies: Sequence[bytes],
    properties: Sequence[dict[str, str]] | dict[str, str] | None = None,
    *,
    whole: bool = False,
) -> Run:
    """Return a checked run of BODIES; PROPERTIES are one for all, or one for each."""
    if properties is None or isinstance(properties, dict):
        properties = [properties or {}] * len(bodies)
    strings = [encode_properties(pairs) for pairs in properties]
    data, sizes = encode_run(
        topic,
        queue,
        zip(bodies, strings, strict=True),
        born_timestamp_ms=1_600_000_000_000,
        born_host=BORN,
    )
    run = check_run(data, sizes, topic, queue)
    run.whole = whole
    return run


def append_record(store: MessageStore, record: Record) -> Appended:
    """Append RECORD to STORE, which overwrites the fields that it owns."""
    return store.append(Run.of(record.topic, record.queue_id, [encode_record(record)]))


def small_config(path: Path, **changes: Any) -> StoreConfig:
    """Return settings with files so small that a few records roll them."""
    sizes: dict[str, Any] = {
        "log_file_size_bytes": 4096,
        "queue_file_size_bytes": 400,
        "index_slots": 50,
        "index_entries": 200,
    }
    return StoreConfig(path=str(path), **(sizes | changes))


def open_store(
    path: Path,
    *,
    disk: Disk | None = None,
    now_ms: Hand | None = None,
    replica: bool = False,
    **changes: Any,
) -> MessageStore:
    """Open a small store at PATH."""
    config = small_config(path, **changes)
    clock = now_ms or Hand()
    return MessageStore.open(config, disk=disk or OsDisk(), now_ms=clock, replica=replica)


def records_of(store: MessageStore, topic: str, queue: int) -> list[Record]:
    """Return all records of a queue, read in pieces."""
    offset, end = store.queue_bounds(topic, queue)
    found: list[Record] = []
    while offset < end:
        slices = store.read_queue(topic, queue, offset, 7, 3000)
        at = 0
        for size in slices.sizes.tolist():
            found.append(decode_record(slices.records, at))
            at += size
        assert slices.next_offset > offset
        offset = slices.next_offset
    return found


def bodies_of(store: MessageStore, topic: str, queue: int) -> list[bytes]:
    """Return the bodies of all records of a queue."""
    return [record.body for record in records_of(store, topic, queue)]
