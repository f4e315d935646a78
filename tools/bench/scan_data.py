"""Stores to scan, made quickly: a log of records of many sizes, and a queue that is much longer than its log.

A record has a body of 10 to 40 bytes, tags, a key and an id, some 190 bytes in all; no two are alike.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import numpy as np

from ...proto.clock import SystemClock
from ...proto.properties import KEYS, TAGS, UNIQ_KEY, encode_properties
from ...proto.record import Host
from ...proto.record_run import encode_run
from ...proto.run_check import check_run
from ...store.config import StoreConfig
from ...store.consume_queue import ENTRY
from ...store.mapped_file import file_name
from ...store.message_store import MessageStore
from ...store.os_disk import OsDisk
from ...store.run import Run

TOPIC: Final = "Orders"
QUEUES: Final = 4
_RUN: Final = 1_000
_DIFFERENT_RUNS: Final = 128
_LOG_FILE_BYTES: Final = 64 << 20
_ENTRIES_A_FILE: Final = 300_000
_SEED: Final = 6


def make_log(root: Path, count: int) -> None:
    """Make a store at ROOT with COUNT messages in QUEUES queues."""
    rng = random.Random(_SEED)
    config = StoreConfig(
        path=str(root), log_file_size_bytes=_LOG_FILE_BYTES, index_slots=1_000, index_entries=4_000
    )
    store = MessageStore.open(config, disk=OsDisk(), now_ms=SystemClock().now_ms)
    try:
        runs = [_run(rng, number) for number in range(min(_DIFFERENT_RUNS, -(-count // _RUN)))]
        for number in range(-(-count // _RUN)):
            records, sizes, queue = runs[number % len(runs)]
            columns = check_run(records, sizes, TOPIC, queue)
            store.append(Run(topic=TOPIC, queue=queue, records=records, columns=columns))
    finally:
        store.close()


def _run(rng: random.Random, number: int) -> tuple[bytes, list[int], int]:
    messages = []
    for place in range(_RUN):
        body = rng.randbytes(rng.randrange(5, 20)).hex().encode()
        names = {
            TAGS: f"Tag{place % 7}",
            KEYS: f"order-{number * _RUN + place}",
            UNIQ_KEY: f"{rng.getrandbits(128):032X}",
        }
        messages.append((body, encode_properties(names)))
    queue = number % QUEUES
    records, sizes = encode_run(
        TOPIC,
        queue,
        messages,
        born_timestamp_ms=1_700_000_000_000,
        born_host=Host.parse("10.0.0.1", 40_000),
    )
    return records, sizes, queue


def make_queues(root: Path, count: int) -> None:
    """Make a store at ROOT that has queues alone: COUNT entries in QUEUES queues."""
    each = count // QUEUES
    for queue in range(QUEUES):
        folder = root / "consumequeue" / TOPIC / str(queue)
        folder.mkdir(parents=True)
        for first in range(0, each, _ENTRIES_A_FILE):
            entries = np.zeros(_ENTRIES_A_FILE, ENTRY)
            used = min(_ENTRIES_A_FILE, each - first)
            numbers = np.arange(first, first + used)
            entries["log_offset"][:used] = numbers * 800 + queue * 200
            entries["size"][:used] = 200
            entries["tags_code"][:used] = numbers % 7
            (folder / file_name(first * ENTRY.itemsize)).write_bytes(entries.tobytes())
