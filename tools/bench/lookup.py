"""`bench lookup`: a key in a full index file of the default size (20 M entries, 420 MB).

Its chains have their usual length. Cold (opened again, dropped from the page cache) and warm. Baseline: one page of the
same file.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from random import Random
from typing import Final

import numpy as np

from ...proto.properties import encode_properties
from ...proto.record import Host, Record, encode_record
from ...store.format.index import index_key, key_hash
from ...store.index_file import IndexFile
from ...store.os_disk import OsDisk
from ..find.search import StoreSearch
from . import measure

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
