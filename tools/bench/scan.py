"""`bench scan`: messages and queue entries from files to Arrow columns, one process, every column.

What is timed is a scan as `pocketmq export` and a task of Spark run it: reading the files, finding the records,
checking their lengths, and making all columns, the map of properties among them. Beside it: pyarrow reading the same
rows from Parquet files that were written from them (ZSTD), in the same run. One thread does all of it, so rates by CPU
time tell what a machine would do that has nothing else to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ..stores.locations import locate
from ..stores.scan.bad_records import BadRecords
from ..stores.scan.scan import Scan, ScanOptions
from .measure import Conditions, Figure, own_cpu_seconds, rounds, seconds_of
from .scan_data import make_log, make_queues

MESSAGES: Final = 1_000_000
ENTRIES: Final = 10_000_000
MESSAGES_AIM: Final = 900_000
ENTRIES_AIM: Final = 20_000_000


def scan(conditions: Conditions) -> Figure:
    """Measure both scans, the best of some rounds each."""
    import pyarrow  # noqa: F401  # before the clock starts

    figure = Figure(
        name="scan",
        what=f"{MESSAGES:,} messages of some 190 B to Arrow, all columns; {ENTRIES:,} queue entries",
    )
    logs, queues = conditions.folder / "log", conditions.folder / "queues"
    make_log(logs, MESSAGES)
    make_queues(queues, ENTRIES)
    message_seconds, figure.client_cpu_seconds = _best(logs, conditions.seconds, dataset="messages")
    size = sum(path.stat().st_blocks * 512 for path in (logs / "commitlog").iterdir())
    figure.add_rate(MESSAGES, size, message_seconds)
    names = ("topic", "queueId", "queueOffset", "storeTimestamp")
    fixed, _ = _best(logs, conditions.seconds, dataset="messages", columns=names)
    entry_seconds, entry_cpu = _best(queues, conditions.seconds, dataset="consumequeue")
    entries_per_second = ENTRIES / entry_seconds
    figure.facts = {
        "messages": MESSAGES,
        "messages_per_cpu_second": MESSAGES / figure.client_cpu_seconds,
        "four_columns_messages_per_second": MESSAGES / fixed,
        "entries": ENTRIES,
        "entries_per_second": entries_per_second,
        "entries_per_cpu_second": ENTRIES / entry_cpu,
        "entries_aim": ENTRIES_AIM,
    }
    figure.notes = [
        f"by CPU time: {MESSAGES / figure.client_cpu_seconds:,.0f} messages a second",
        f"four columns: {MESSAGES / fixed:,.0f} messages a second",
        f"queue entries: {entries_per_second:,.0f} a second (aim: {ENTRIES_AIM:,})",
    ]
    assert figure.messages_per_second is not None
    parquet = _parquet_seconds(conditions, logs, dataset="messages")
    figure.compare("parquet_messages_per_second", MESSAGES / parquet, figure.messages_per_second)
    parquet = _parquet_seconds(conditions, queues, dataset="consumequeue")
    figure.compare("parquet_entries_per_second", ENTRIES / parquet, entries_per_second)
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
    for task in one.plan(locate([str(store)], broker_name="broker-a")):
        yield from one.read(task, BadRecords("fail"))


def _parquet_seconds(conditions: Conditions, store: Path, **options: Any) -> float:
    """Return how long pyarrow needs to read the rows of STORE from Parquet, one thread, the best of some rounds."""
    from pyarrow import parquet

    path = conditions.folder / f"{options['dataset']}.parquet"
    schema = ScanOptions(**options).schema()
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        for batch in _batches(store, **options):
            writer.write_batch(batch)

    def read() -> None:
        for _ in parquet.ParquetFile(path).iter_batches(65_536, use_threads=False):
            pass

    return min(seconds_of(read) for _ in range(3))
