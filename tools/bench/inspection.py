"""`bench inspect`: the overview and the verification of a store, without the start of Python.

The overview is of a store of 100 GiB, mostly holes, with 1,000 queues; the verification reads VERIFIED_LOG_BYTES of
1 KiB messages. Baseline: the CRC.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import Final

import numpy as np

from ...proto.properties import encode_properties
from ...proto.record import LOG_OFFSET_AT, NO_HOST, encode_run
from ...proto.run import Run, check_run
from ...store.config import StoreConfig
from ...store.files import file_name
from ...store.format.queues import ENTRY
from ...store.message_store import MessageStore
from ...store.os_disk import OsDisk
from ...store.view import StoreView
from ..inspect.overview import Overview
from ..inspect.verification import Verification
from . import measure
from .recovery import crc_seconds

GIB: Final = 1 << 30
LOG_FILES: Final = 100
VERIFIED_QUEUES: Final = 1_000
VERIFIED_LOG_BYTES: Final = 512 * measure.MIB
_NEWEST: Final = 5_000
_RUN: Final = 500
_BODY_BYTES: Final = 1024


def inspect(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure the overview and the verification."""
    figure = measure.Figure(
        name="inspect", what="overview of a store of 100 GiB; verify 512 MiB of 1 KiB messages"
    )
    large = conditions.folder / "large"
    _make_large(large)
    overview_s, overview_cpu_s = _overview(large)
    whole = conditions.folder / "whole"
    messages = _make_whole(whole)
    began, cpu = time.perf_counter(), time.process_time()
    verification = Verification(StoreView(OsDisk(), str(whole)))
    for _ in verification.run():
        pass
    seconds = time.perf_counter() - began
    assert not verification.tally.is_wrong
    figure.client_cpu_seconds = time.process_time() - cpu
    figure.add_rate(messages, verification.tally.log_bytes, seconds)
    figure.facts = {
        "messages": messages,
        "overview_seconds": overview_s,
        "overview_cpu_seconds": overview_cpu_s,
        "verify_seconds": seconds,
        "verify_cpu_seconds": figure.client_cpu_seconds,
    }
    figure.notes = [
        f"the overview took {overview_s:.2f} s, {overview_cpu_s:.2f} s of processor time"
    ]
    figure.compare("crc_of_the_log_seconds", crc_seconds(whole), seconds)
    figure.aim = (overview_s, 1.0, False)
    return figure


def _overview(store: Path) -> tuple[float, float]:
    """Return how long an overview takes, and its processor time."""
    began, cpu = time.perf_counter(), time.process_time()
    document = Overview(StoreView(OsDisk(), str(store))).document()
    assert document["log"]["files"] == LOG_FILES
    return time.perf_counter() - began, time.process_time() - cpu


def _make_large(store: Path) -> None:
    (store / "commitlog").mkdir(parents=True)
    data, (size,) = encode_run(
        "Large", 0, [(bytes(200), b"")], born_timestamp_ms=1, born_host=NO_HOST
    )
    for start in range(0, LOG_FILES * GIB, GIB):
        last = start == (LOG_FILES - 1) * GIB
        with (store / "commitlog" / file_name(start)).open("wb") as file:
            file.truncate(GIB)
            for number in range(_NEWEST if last else 1):
                record = bytearray(data)
                struct.pack_into(">q", record, LOG_OFFSET_AT, start + number * size)
                file.write(record)
    entries = np.array([((LOG_FILES - 1) * GIB, size, 0)] * 100, ENTRY.dtype)
    for number in range(VERIFIED_QUEUES):
        folder = store / "consumequeue" / f"Large{number // 8}" / str(number % 8)
        folder.mkdir(parents=True)
        with (folder / file_name(0)).open("wb") as file:
            file.truncate(6_000_000)
            file.write(entries.tobytes())


def _make_whole(path: Path) -> int:
    """Fill the store at PATH; return how many messages it has."""
    store = MessageStore.open(StoreConfig(path=str(path)), disk=OsDisk(), now_ms=lambda: 1)
    count = 0
    try:
        while store.max_log_offset < VERIFIED_LOG_BYTES:
            store.append(_run_of_bodies(count))
            count += _RUN
    finally:
        store.close()
    return count


def _run_of_bodies(first: int) -> Run:
    messages = [
        (number.to_bytes(8, "big") * (_BODY_BYTES // 8), _properties(number))
        for number in range(first, first + _RUN)
    ]
    queue = first // _RUN % 8
    data, sizes = encode_run("whole", queue, messages, born_timestamp_ms=1, born_host=NO_HOST)
    return check_run(data, sizes, "whole", queue)


def _properties(number: int) -> bytes:
    return encode_properties({"UNIQ_KEY": f"01{number:032X}", "TAGS": f"tag{number % 5}"})
