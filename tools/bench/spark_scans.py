"""`bench spark`: scans, a filter and the lag job on local[2], warm, the best of three.

Baselines: the same aggregate over Spark's Parquet reader, and `pocketmq lag`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..lag.cold import store_rows
from ..stores.cold_store import open_cold
from ..stores.locations import locate
from ..stores.scan.conditions import Conditions as Wanted, Span
from ..stores.scan.scan import Scan, ScanOptions
from .generated_stores import GROUPS, LAG, MESSAGES, QUEUES, lag_store, message_store, queue_store
from .measure import BenchConditions, Figure, rounded, seconds_of
from .scanning import write_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
        rows = frame.load(str(root)).where(f"queue = 2 and queue_offset between {first} and {last}")
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
