"""Benchmarks of reading: `consume`, `push`, `poll`, `scan` and `spark`, with bodies of 128 B and default settings.

    consume   from a full topic to decoded messages with body, properties and offset; a latency is that of one poll.
              `body_only_messages_per_second` does not decode the properties
    push      a listener that is called per message and reads the body; also a coroutine listener, and one in order
    poll      batches whose columns (offsets, places of bodies) are read with numpy; the other rates read more
    scan      messages and queue entries from files to Arrow columns, as `pocketmq export` and Spark tasks do, in one
              thread. Baseline: pyarrow with all its threads reads the same rows from Parquet (ZSTD)
    spark     scans, a filter and the lag job on local[2], warm, the best of three. Baselines: the same aggregate over
              Spark's Parquet reader, and `pocketmq lag`

The baseline of consume, push and poll is a bare gRPC stream with answers as long as a fetch's.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...client import AsyncProducer, AsyncPullConsumer, MessageBatch, PushConsumer
from ..lag.cold import store_rows
from ..stores.cold_store import open_cold
from ..stores.locations import locate
from ..stores.scan.conditions import BadRecords, Conditions as Wanted, Span
from ..stores.scan.scan import Scan, ScanOptions
from ..stores.schemas import arrow
from .generated_stores import (
    GROUPS,
    LAG,
    MESSAGES,
    QUEUES,
    lag_store,
    message_store,
    queue_store,
)
from .measure import (
    MIB,
    BenchConditions,
    Figure,
    memcpy_bytes_per_second,
    own_cpu_seconds,
    rounded,
    rounds,
    seconds_of,
)
from .servers import TOPIC, batch, cpu_of_both, record_bytes, server_with_topic
from .yardsticks import echo_per_second

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BODY_BYTES: Final = 128
RATE_EXPECTED: Final = 300_000
_BATCH: Final = 4_000
_RECORD_BYTES: Final = record_bytes(BODY_BYTES)
_SIZES: Final = {"body_bytes": BODY_BYTES, "record_bytes": _RECORD_BYTES}


#: Looks at a batch; returns how many bytes its bodies have.
Look = Callable[[MessageBatch], int]


def consume(conditions: BenchConditions) -> Figure:
    """Measure reading."""
    batches, count = _sent(conditions, RATE_EXPECTED)
    figure = Figure(
        name="consume",
        what=f"{BODY_BYTES} B bodies, a cold queue, one consumer, body, properties and offset read",
    )
    with server_with_topic(conditions.folder) as server:
        asyncio.run(fill(server.nameserver, batches, BODY_BYTES))
        with cpu_of_both(figure, server):
            latencies, seconds = asyncio.run(_read(server.nameserver, count, "whole", _whole))
        # Who just left a group may still be in it.
        _, body_seconds = asyncio.run(
            _read(server.nameserver, count, "bodies", _without_properties)
        )
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.add_latencies(latencies)
    figure.facts = _SIZES | {
        "messages": count,
        "body_only_messages_per_second": count / body_seconds,
    }
    return _beside(figure, RATE_EXPECTED)


def _sent(conditions: BenchConditions, rate: int) -> tuple[int, int]:
    """Return how many batches, and messages, keep who reads RATE a second busy for as long as CONDITIONS say."""
    batches = max(1, round(rate * conditions.seconds / _BATCH))
    return batches, batches * _BATCH


async def fill(nameserver: str, batches: int, body_bytes: int) -> None:
    """Send so many BATCHES of messages with bodies of BODY_BYTES."""
    async with AsyncProducer(nameserver) as producer:
        for at in range(0, batches, 16):
            some = range(min(16, batches - at))
            await asyncio.gather(*(producer.send_many(batch(_BATCH, body_bytes)) for _ in some))


def _whole(batch: MessageBatch) -> int:
    size_bytes = 0
    for message in batch:
        assert message.queue_offset >= 0
        assert message.properties
        size_bytes += len(message.body)
    return size_bytes


def _without_properties(batch: MessageBatch) -> int:
    size_bytes = 0
    for message in batch:
        assert message.queue_offset >= 0
        size_bytes += len(message.body)
    return size_bytes


def _messages(batch: MessageBatch) -> int:
    return sum(len(message.body) for message in batch)


async def _read(nameserver: str, count: int, group: str, look: Look) -> tuple[list[float], float]:
    """Read COUNT messages as GROUP, with LOOK; return the latency of each poll, and how long it took in all."""
    latencies: list[float] = []
    size_bytes = 0
    began = time.perf_counter()
    async with AsyncPullConsumer(group, TOPIC, nameserver, start="earliest") as consumer:
        left = count
        while left > 0:
            asked = time.perf_counter()
            batch = await consumer.poll(timeout_ms=10_000)
            latencies.append(time.perf_counter() - asked)
            assert batch, f"{left} of {count} messages did not come"
            size_bytes += look(batch)
            left -= len(batch)
        seconds = time.perf_counter() - began
    assert size_bytes == count * BODY_BYTES
    return latencies, seconds


def _beside(figure: Figure, aim: int) -> Figure:
    """Hold FIGURE against a copy and a gRPC echo of the same bytes, and against AIM messages a second."""
    assert figure.messages_per_second is not None
    record_rate = figure.messages_per_second * _RECORD_BYTES
    figure.compare("memcpy_bytes_per_second", memcpy_bytes_per_second(64 * MIB), record_rate)
    echo = echo_per_second(request_bytes=64, reply_bytes=MIB, in_flight=8)
    figure.compare(
        "grpc_echo_messages_per_second", echo * MIB / _RECORD_BYTES, figure.messages_per_second
    )
    figure.aim = (figure.messages_per_second, aim, True)
    return figure


# ---------------------------------------------------------------- `bench push`


_TIMEOUT_S: Final = 600.0


def push(conditions: BenchConditions) -> Figure:
    """Measure listening."""
    batches, count = _sent(conditions, RATE_EXPECTED)
    figure = Figure(
        name="push",
        what=f"{BODY_BYTES} B bodies, a cold topic, one push consumer, a call a message, body read",
    )
    with server_with_topic(conditions.folder) as server:
        asyncio.run(fill(server.nameserver, batches, BODY_BYTES))
        _handled(server.nameserver, "warm", _BATCH)
        with cpu_of_both(figure, server):
            seconds = _handled(server.nameserver, "called", count)
        ordered_seconds = _handled(server.nameserver, "ordered", count, ordered=True)
        awaited_seconds = _handled(server.nameserver, "awaited", count, awaited=True)
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "in_order_messages_per_second": count / ordered_seconds,
        "awaited_messages_per_second": count / awaited_seconds,
    }
    return _beside(figure, 225_000)


def _counter(count: int, done: Callable[[], object]) -> Callable[[Any], None]:
    """Return a listener that calls DONE with the last of COUNT messages."""
    left = count

    def listener(message: Any) -> None:
        nonlocal left
        assert len(message.body) == BODY_BYTES
        left -= 1
        if not left:
            done()

    return listener


def _handled(
    nameserver: str, group: str, count: int, *, ordered: bool = False, awaited: bool = False
) -> float:
    """Handle COUNT messages on a thread, or AWAITED on the loop; return how long it took."""
    done = threading.Event()
    call = _counter(count, done.set)

    async def listener(message: Any) -> None:
        call(message)

    began = time.perf_counter()
    with PushConsumer(
        group,
        TOPIC,
        listener if awaited else call,
        nameserver,
        ordered=ordered,
        start="earliest",
    ):
        assert done.wait(_TIMEOUT_S), f"{count} messages did not come"
        return time.perf_counter() - began


# ---------------------------------------------------------------- `bench poll`


POLLED_RATE_EXPECTED: Final = 1_000_000


def poll(conditions: BenchConditions) -> Figure:
    """Measure polling."""
    batches, count = _sent(conditions, POLLED_RATE_EXPECTED)
    figure = Figure(
        name="poll",
        what=f"{BODY_BYTES} B bodies, cold queues, one consumer, batches read by the column",
    )
    with server_with_topic(conditions.folder) as server:
        asyncio.run(fill(server.nameserver, batches, BODY_BYTES))
        with cpu_of_both(figure, server):
            latencies, seconds = asyncio.run(_read(server.nameserver, count, "columns", _columns))
        others = {
            name: count / asyncio.run(_read(server.nameserver, count, name, look))[1]
            for name, look in (("matrix", _matrix), ("bodies", _bodies), ("messages", _messages))
        }
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.add_latencies(latencies)
    rates = {f"{name}_messages_per_second": rate for name, rate in others.items()}
    figure.facts = _SIZES | {"messages": count} | rates
    return _beside(figure, POLLED_RATE_EXPECTED)


def _columns(batch: MessageBatch) -> int:
    columns = batch.columns
    assert int(columns.queue_offset[-1]) >= len(batch) - 1
    return int(columns.body_size.sum())


def _matrix(batch: MessageBatch) -> int:
    matrix = batch.body_matrix()
    assert not matrix[:, 0].any()
    return matrix.size


def _bodies(batch: MessageBatch) -> int:
    return sum(map(len, batch.bodies))


# ---------------------------------------------------------------- `bench scan`


MESSAGES_AIM: Final = 900_000
ENTRIES_AIM: Final = 20_000_000
_PARQUET_ROUNDS: Final = 3


def scan(conditions: BenchConditions) -> Figure:
    """Measure both scans, the best of some rounds each."""
    arrow()  # Before the clock starts; without it nothing can be measured.
    messages, entries = MESSAGES.count, QUEUES.count
    figure = Figure(
        name="scan",
        what=f"{messages:,} messages to Arrow, all columns; {entries:,} queue entries",
    )
    logs = message_store(conditions.folder / "messages", MESSAGES)
    queues = queue_store(conditions.folder / "queues", QUEUES)
    message_seconds, figure.client_cpu_seconds = _best(logs, conditions.seconds, dataset="messages")
    figure.add_rate(messages, MESSAGES.log_end, message_seconds)
    names = ("topic", "queueId", "queueOffset", "storeTimestamp")
    fixed, _ = _best(logs, conditions.seconds, dataset="messages", columns=names)
    entry_seconds, entry_cpu = _best(queues, conditions.seconds, dataset="consumequeue")
    entries_per_second = entries / entry_seconds
    figure.facts = {
        "messages": messages,
        "messages_per_cpu_second": messages / figure.client_cpu_seconds,
        "four_columns_messages_per_second": messages / fixed,
        "entries": entries,
        "entries_per_second": entries_per_second,
        "entries_per_cpu_second": entries / entry_cpu,
        "entries_aim": ENTRIES_AIM,
    }
    figure.notes = [
        f"by CPU time: {messages / figure.client_cpu_seconds:,.0f} messages a second",
        f"four columns: {messages / fixed:,.0f} messages a second",
        f"queue entries: {entries_per_second:,.0f} a second (aim: {ENTRIES_AIM:,})",
    ]
    assert figure.messages_per_second is not None
    parquet = _parquet_seconds(logs, conditions.folder, "messages")
    figure.compare("parquet_messages_per_second", messages / parquet, figure.messages_per_second)
    parquet = _parquet_seconds(queues, conditions.folder, "consumequeue")
    figure.compare("parquet_entries_per_second", entries / parquet, entries_per_second)
    figure.aim = (figure.messages_per_second, MESSAGES_AIM, True)
    return figure


def _best(store: Path, seconds: float, **options: Any) -> tuple[float, float]:
    """Return the least time, and the least CPU time, that a scan of STORE took in rounds of SECONDS together."""
    cpu: list[float] = []

    def scanned() -> None:
        began = own_cpu_seconds()
        for _ in _batches(store, **options):
            pass
        cpu.append(own_cpu_seconds() - began)

    return min(rounds(scanned, seconds=seconds)), min(cpu)


def _batches(store: Path, **options: Any) -> Iterator[Any]:
    one = Scan(ScanOptions(**options))
    for task in one.plan(locate([str(store)])):
        yield from one.read(task, BadRecords("fail"))


def _parquet_seconds(store: Path, folder: Path, dataset: str) -> float:
    """Return how long pyarrow needs to read the rows of DATASET of STORE from Parquet, the best of some rounds."""
    from pyarrow import parquet

    path = write_parquet(store, folder, dataset)
    return min(seconds_of(lambda: parquet.read_table(path)) for _ in range(_PARQUET_ROUNDS))


def write_parquet(store: Path, folder: Path, dataset: str) -> Path:
    """Write the rows of DATASET of STORE into a Parquet file in FOLDER; return its path."""
    from pyarrow import parquet

    path = folder / f"{dataset}.parquet"
    schema = ScanOptions(dataset=dataset).schema()
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _batches(store, dataset=dataset):
            writer.write_batch(batch)
    return path


# ---------------------------------------------------------------- `bench spark`


#: Name → (aim, is more better).
AIMS: Final = {
    "queue_scan_rows_per_second": (1.5e6, True),
    "message_scan_rows_per_second": (0.4e6, True),
    "lag_seconds": (3.0, False),
}
_DATASETS: Final = {"queue": "consumequeue", "message": "messages"}
_NOW_MS: Final = 1_760_000_100_000
_WARM_UP: Final = 2
_BEST_OF: Final = 3
#: What part of one queue the filter asks for.
_FILTERED_SHARE: Final = 25


def spark(conditions: BenchConditions) -> Figure:
    """Measure scans, a filter and the lag job."""
    from ..java import find_java
    from ..spark.session import require_pyspark

    require_pyspark()
    find_java(os.environ)
    figure = Figure(name="spark", what="stores on Spark local[2], warm: scans, a filter, lag job")
    folder = conditions.folder
    queues = queue_store(folder / "queues", QUEUES)
    messages = message_store(folder / "messages", MESSAGES)
    lag = lag_store(folder / "lag", LAG)
    facts = {"plain_lag_seconds": min(seconds_of(lambda: _plain_lag(lag)) for _ in range(2))}
    session = _session()
    try:
        for kind, store, count in (
            ("queue", queues, QUEUES.count),
            ("message", messages, MESSAGES.count),
        ):
            parquet = write_parquet(store, folder, _DATASETS[kind])
            ours, theirs = _scan(session, store, parquet, _DATASETS[kind], count)
            facts[f"{kind}_scan_rows_per_second"] = ours
            figure.compare(f"spark_parquet_{kind}_rows_per_second", theirs, ours)
        facts |= _filter(session, queues)
        facts["lag_seconds"] = _lag(session, lag)
    finally:
        session.stop()
    figure.facts = dict(facts)
    figure.messages_per_second = facts["message_scan_rows_per_second"]
    figure.notes = list(_notes(facts))
    figure.aim = (min(_share(name, facts[name]) for name in AIMS), 1.0, True)
    return figure


def _share(name: str, value: float) -> float:
    """Return how far the aim NAME is reached; 1 or more: it is."""
    aim, more_is_better = AIMS[name]
    return value / aim if more_is_better else aim / value


def _notes(facts: dict[str, float]) -> Iterator[str]:
    for name, value in facts.items():
        if name in AIMS:
            aim, more_is_better = AIMS[name]
            sign, met = "≥" if more_is_better else "≤", _share(name, value) >= 1
            verdict = f"  (aim {sign} {aim:,g}: {'met' if met else 'missed'})"
        else:
            verdict = ""
        yield f"{name:34} {rounded(value):>14,}{verdict}"


def _plain_lag(root: Path) -> None:
    (location,) = locate([str(root)])
    store = open_cold(location, now_ms=_NOW_MS, index=False)
    assert len(store_rows(store, _NOW_MS)) == LAG.queue_count * GROUPS


def _session() -> SparkSession:
    from ..spark import spark_session

    return spark_session("pocketmq-bench", master="local[2]")


def _warm_seconds(query: Callable[[], object]) -> float:
    for _ in range(_WARM_UP):
        query()
    return min(seconds_of(query) for _ in range(_BEST_OF))


def _touched(frame: DataFrame) -> list[Any]:
    """Return an aggregate of every column of FRAME."""
    from pyspark.sql import functions as f

    parts = []
    for name, kind in frame.dtypes:
        if kind in ("int", "bigint"):
            parts.append(f.sum(name))
        elif kind == "timestamp":
            parts.append(f.max(name))
        elif kind.startswith("map"):
            parts.append(f.sum(f.size(name)))
        else:
            parts.append(f.sum(f.length(name)))
    rows: list[Any] = frame.agg(f.count("*"), *parts).collect()
    return rows


def _scan(
    session: SparkSession, root: Path, parquet: Path, dataset: str, count: int
) -> tuple[float, float]:
    """Return rows a second of a whole scan of ROOT, and of Spark's own reader over PARQUET, the same rows."""

    def of_store() -> None:
        frame = session.read.format("rocketmq-store").option("dataset", dataset)
        assert _touched(frame.load(str(root)))[0][0] == count

    def of_parquet() -> None:
        assert _touched(session.read.parquet(str(parquet)))[0][0] == count

    return count / _warm_seconds(of_store), count / _warm_seconds(of_parquet)


def _filter(session: SparkSession, root: Path) -> dict[str, float]:
    """Return the seconds of a filter on queue and offsets, and the bytes that it reads, of how many."""
    size = QUEUES.count // QUEUES.queue_count
    first, last = size // 2, size // 2 + size // _FILTERED_SHARE
    wanted = Wanted(queue_ids=frozenset({2}), queue_offsets=Span(first, last))
    options = ScanOptions(dataset="consumequeue")
    locations = locate([str(root)])
    whole, some = (
        sum(part.size for task in Scan(options, one).plan(locations) for part in task.parts)
        for one in (None, wanted)
    )

    def query() -> None:
        frame = session.read.format("rocketmq-store").option("dataset", "consumequeue")
        rows = frame.load(str(root)).where(
            f"queueId = 2 and queueOffset between {first} and {last}"
        )
        assert rows.count() == last - first + 1

    return {
        "filter_seconds": _warm_seconds(query),
        "filter_bytes_read": some,
        "filter_bytes_of": whole,
    }


def _lag(session: SparkSession, root: Path) -> float:
    from ..spark.jobs.lag import lag
    from ..spark.store_options import Opening

    opening = Opening(now_ms=_NOW_MS)

    def query() -> None:
        assert len(lag(session, str(root), opening=opening).toArrow()) == LAG.queue_count * GROUPS

    return _warm_seconds(query)
