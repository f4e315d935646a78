"""Benchmarks of stores: `store`, `recovery`, `inspect` and `lookup`.

store      append, consume queue and key index of 200 B records with one key, batches of 1,000, one thread;
           `with_check_messages_per_second` adds the checks of a broker. Baseline: a memcpy of the same bytes
recovery   from start to serving, with a log of 1 GiB of 1 KiB messages (in the page cache) after `kill -9`.
           Baseline: the CRC of the same bytes, which recovery must compute
inspect    the overview of a store of 100 GiB, mostly holes, with 1,000 queues; the verification of
           VERIFIED_LOG_BYTES of 1 KiB messages. Baseline: the CRC. Without the start of Python
lookup     a key in a full index file of the default size (20 M entries, 420 MB) whose chains have their usual
           length; cold (opened again, dropped from the page cache) and warm. Baseline: one page of the same file
"""

from __future__ import annotations

import asyncio
import itertools
import mmap
import os
import struct
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from ...client import AsyncProducer
from ...proto.clock import SystemClock
from ...proto.properties import KEYS, encode_properties
from ...proto.record import (
    FIXED_SIZE_V4,
    LOG_OFFSET_AT,
    NO_HOST,
    Host,
    Record,
    encode_record,
    encode_run,
)
from ...proto.run import Run, check_run
from ...store.config import StoreConfig
from ...store.files import file_name
from ...store.format.index import index_key, key_hash
from ...store.format.queues import ENTRY
from ...store.index_file import IndexFile
from ...store.message_store import MessageStore
from ...store.os_disk import OsDisk
from ...store.view import StoreView
from ..inspect.overview import Overview
from ..inspect.verification import Verification
from ..lookup.search import StoreSearch
from ..server_process import ServerProcess
from . import measure, servers

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
        what=f"append, queue and key index of {RECORD_BYTES} B records, one key each, runs of {RUN}",
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


# ---------------------------------------------------------------- `bench recovery`


BODY_BYTES: Final = 1024
LOG_BYTES: Final = 1024 * measure.MIB
_BATCH: Final = 1_000
_RECORD_BYTES: Final = servers.record_bytes(BODY_BYTES)


def recovery(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure recovery after a kill."""
    figure = measure.Figure(
        name="recovery", what="start to serving over 1 GiB of 1 KiB messages left by kill -9"
    )
    store = conditions.folder / "store"
    with servers.server_with_topic(conditions.folder) as server:
        count = asyncio.run(_fill(server.nameserver))
        server.kill()
    began = time.perf_counter()
    with ServerProcess(store) as server:
        seconds = time.perf_counter() - began
        figure.server_cpu_seconds = server.cpu_seconds()
        figure.server_rss_bytes = server.rss_bytes()
        report = server.ready["recovery"]
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "seconds_to_serving": seconds,
        "recovery": report,
    }
    figure.compare("crc_of_the_log_seconds", crc_seconds(store), seconds)
    figure.aim = (seconds, 2.5, False)
    return figure


async def _fill(nameserver: str) -> int:
    """Send as many messages as fit the log; return how many."""
    batches = LOG_BYTES // (_RECORD_BYTES * _BATCH)
    async with AsyncProducer(nameserver) as producer:
        for at in range(0, batches, 16):
            some = range(min(16, batches - at))
            await asyncio.gather(
                *(producer.send_many(servers.batch(_BATCH, BODY_BYTES)) for _ in some)
            )
    return batches * _BATCH


def crc_seconds(store: Path) -> float:
    """Return how long the CRC of the log's bytes takes."""

    def compute() -> None:
        for path in sorted((store / "commitlog").iterdir()):
            with path.open("rb") as file:
                while data := file.read(measure.MIB):
                    zlib.crc32(data)

    return measure.seconds_of(compute)


# ---------------------------------------------------------------- `bench inspect`


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


# ---------------------------------------------------------------- `bench lookup`


RECORDS: Final = 20_000
_SLOTS: Final = 5_000_000
_ENTRIES: Final = 20_000_000
_KEYS_AT_ONCE: Final = 1_000_000
_TOPIC: Final = "Bench"
_BEGIN_MS: Final = 1_700_000_000_000
_HOST: Final = Host.parse("127.0.0.1", 10911)
_COLD_ROUNDS: Final = 15


def lookup(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure look-ups by key."""
    figure = measure.Figure(
        name="lookup", what="a key in a full index file of 20 M entries, compared with its record"
    )
    offsets = _write_log(conditions.folder / "commitlog")
    index = _write_index(conditions.folder / "index", offsets)
    random = Random(1)
    cold = [_cold(conditions.folder, index, random) for _ in range(_COLD_ROUNDS)]
    index.read_bytes()  # Into the page cache.
    warm = _warm(conditions.folder, conditions.seconds, random)
    figure.add_latencies(warm)
    figure.messages_per_second = len(warm) / sum(warm)
    cold_p50_ms, cold_p99_ms = measure.percentiles_ms(cold)
    figure.facts = {
        "index_bytes": os.path.getsize(index),
        "cold_p50_ms": cold_p50_ms,
        "cold_p99_ms": cold_p99_ms,
        "cold_aim_ms": 20.0,
    }
    figure.notes = [f"cold: {cold_p50_ms:.2f} ms, at worst {cold_p99_ms:.2f} ms (aim: ≤ 20 ms)"]
    figure.compare("cold_page_ms", _cold_page_ms(index), cold_p50_ms)
    assert figure.p50_ms is not None
    figure.aim = (figure.p50_ms, 1.0, False)
    return figure


def _write_log(folder: Path) -> list[int]:
    """Write the messages; return their log offsets."""
    folder.mkdir()
    offsets, parts, at = [], [], 0
    for number in range(RECORDS):
        record = Record(
            topic=_TOPIC,
            body=b"x" * 64,
            queue_offset=number,
            log_offset=at,
            born_host=_HOST,
            store_host=_HOST,
            store_timestamp_ms=_BEGIN_MS + number,
        )
        data = encode_record(record, property_string=encode_properties({"KEYS": f"k{number}"}))
        offsets.append(at)
        parts.append(data)
        at += len(data)
    (folder / f"{0:020d}").write_bytes(b"".join(parts))
    return offsets


def _write_index(folder: Path, offsets: list[int]) -> Path:
    """Write a full file that leads to the messages, among the entries of other keys."""
    folder.mkdir()
    path = folder / "20260101000000000"
    file = IndexFile.create(OsDisk(), str(path), _SLOTS, _ENTRIES, end_log_offset=0, end_ms=0)
    own = [key_hash(index_key(_TOPIC, f"k{number}")) for number in range(RECORDS)]
    numbers = np.random.default_rng(1)
    places = np.asarray(offsets, np.int64)
    shares = np.array_split(np.arange(RECORDS), -(-file.room // _KEYS_AT_ONCE))
    last = len(shares) - 1
    for run, share in enumerate(shares):
        count = min(_KEYS_AT_ONCE, file.room)
        hashes = numbers.integers(0, 1 << 31, count, dtype=np.int64).astype(np.int32)
        rows = np.sort(numbers.integers(share[0], share[-1] + 1, count))
        chosen = numbers.choice(count, len(share), replace=False)
        hashes[chosen] = np.asarray(own, np.int32)[share]
        rows[chosen] = share
        if run == last:
            rows[-1] = RECORDS - 1
        file.put(hashes, places[rows], _BEGIN_MS + rows)
    file.sync()
    file.close()
    return path


def _cold(root: Path, index: Path, random: Random) -> float:
    """Return how long it takes to open the store and find one key, with nothing of the index in memory."""
    _forget(index)
    key = f"k{random.randrange(RECORDS)}"
    began = time.perf_counter()
    found = StoreSearch(OsDisk(), str(root)).by_key(_TOPIC, key)
    took = time.perf_counter() - began
    assert len(found.hits) == 1, found.summary()
    return took


def _warm(root: Path, seconds: float, random: Random) -> list[float]:
    search = StoreSearch(OsDisk(), str(root))
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        key = f"k{random.randrange(RECORDS)}"
        began = time.perf_counter()
        found = search.by_key(_TOPIC, key)
        times.append(time.perf_counter() - began)
        assert len(found.hits) == 1, found.summary()
    return times


def _cold_page_ms(path: Path) -> float:
    """Return how long one page takes that is not in memory, the median."""
    times = []
    random = Random(2)
    with open(path, "rb") as file:
        for _ in range(_COLD_ROUNDS):
            _forget(path)
            began = time.perf_counter()
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                mapped[random.randrange(len(mapped))]
            times.append(time.perf_counter() - began)
    return measure.percentiles_ms(times)[0]


def _forget(path: Path) -> None:
    """Drop PATH from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
