"""`bench store`: append, consume queue and key index of 200 B records with one key, batches of 1,000, one thread.

`with_check_messages_per_second` adds the checks of a broker. Baseline: a memcpy of the same bytes.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Final

from ...proto.clock import SystemClock
from ...proto.properties import KEYS, encode_properties
from ...proto.record import FIXED_SIZE_V4, NO_HOST, encode_run
from ...proto.run import check_run
from ...store.config import StoreConfig
from ...store.message_store import MessageStore
from ...store.os_disk import OsDisk
from . import measure

TOPIC: Final = "bench"
RECORD_BYTES: Final = 200
RUN: Final = 1_000
#: Runs with keys of their own; they are appended in turn, each time to the next queue.
DIFFERENT_RUNS: Final = 256
QUEUES: Final = 8

#: Records end to end, their sizes, their queue.
PreparedRun = tuple[bytes, list[int], int]


def store(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure appending."""
    figure = measure.Figure(
        name="store",
        what=f"append, queue and key index of {RECORD_BYTES} B records, one key each, batches of {RUN}",
    )
    runs = [_run_of_records(number) for number in range(DIFFERENT_RUNS)]
    config = StoreConfig(path=str(conditions.folder / "store"))
    message_store = MessageStore.open(config, disk=OsDisk(), now_ms=SystemClock().unix_ms)
    try:
        _append_for(message_store, runs, 0.3)  # Files, pages, code that runs first.
        cpu_before = measure.own_cpu_seconds()
        checks, appends = _append_for(message_store, runs, conditions.seconds)
        figure.client_cpu_seconds = measure.own_cpu_seconds() - cpu_before
    finally:
        message_store.close()
    count = len(appends) * RUN
    figure.add_rate(count, count * RECORD_BYTES, sum(appends))
    figure.add_latencies(appends)
    both = sum(appends) + sum(checks)
    figure.facts = {
        "messages": count,
        "record_bytes": RECORD_BYTES,
        "with_check_messages_per_second": count / both,
    }
    assert figure.messages_per_second is not None
    assert figure.bytes_per_second is not None
    memcpy = measure.memcpy_bytes_per_second(RECORD_BYTES * RUN * DIFFERENT_RUNS)
    figure.compare("memcpy_bytes_per_second", memcpy, figure.bytes_per_second)
    figure.aim = (figure.messages_per_second, 1_000_000, True)
    return figure


def _append_for(
    message_store: MessageStore, runs: Sequence[PreparedRun], seconds: float
) -> tuple[list[float], list[float]]:
    """Append RUNS in turn for SECONDS; return how long each check and each append took."""
    checks: list[float] = []
    appends: list[float] = []
    end = time.perf_counter() + seconds
    for records, sizes, queue in itertools.cycle(runs):
        began = time.perf_counter()
        run = check_run(records, sizes, TOPIC, queue)
        checked = time.perf_counter()
        message_store.append(run)
        appended = time.perf_counter()
        checks.append(checked - began)
        appends.append(appended - checked)
        if appended > end:
            break
    return checks, appends


def _run_of_records(number: int) -> PreparedRun:
    """Return run NUMBER: its records, their sizes, and its queue."""
    queue = number % QUEUES
    messages = [_message(number * RUN + at) for at in range(RUN)]
    records, sizes = encode_run(
        TOPIC, queue, messages, born_timestamp_ms=1_700_000_000_000, born_host=NO_HOST
    )
    assert set(sizes) == {RECORD_BYTES}
    return records, sizes, queue


def _message(number: int) -> tuple[bytes, bytes]:
    """Return a body and the property string with key NUMBER, that make a record of RECORD_BYTES."""
    properties = encode_properties({KEYS: f"key-{number:08}"})
    body_bytes = RECORD_BYTES - FIXED_SIZE_V4 - len(TOPIC) - len(properties)
    return number.to_bytes(8, "big").ljust(body_bytes, b"."), properties
