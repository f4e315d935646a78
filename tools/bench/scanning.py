"""`bench scan`: messages and queue entries from files to Arrow columns, in one thread.

`pocketmq export` and Spark tasks read in the same way. Baseline: pyarrow with all its threads reads the same rows from
Parquet (ZSTD).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..stores.locations import locate
from ..stores.scan.bad_records import BadRecords
from ..stores.scan.scan import Scan, ScanOptions
from ..stores.schemas import arrow
from .generated_stores import MESSAGES, QUEUES, message_store, queue_store
from .measure import BenchConditions, Figure, own_cpu_seconds, rounds, seconds_of

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
    names = ("topic", "queue", "queue_offset", "store_timestamp")
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
        f"by CPU time: {messages / figure.client_cpu_seconds:,.0f} messages per second",
        f"four columns: {messages / fixed:,.0f} messages per second",
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
