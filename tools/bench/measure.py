"""What all benchmarks share: the result that they print, rounds and percentiles, and the baselines to compare it with.

A result is that of this machine at this moment, so each is printed next to what the machine did with the same bytes in
the same run: a memcpy, a write with fdatasync. Ratios are PocketMQ's rate divided by the baseline's.
"""

from __future__ import annotations

import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...proto import speedups

MIB: Final = 1 << 20
#: Of official clients; best known first: the aims are for Java.
LANGUAGES: Final = ("java", "go", "node", "python", "rust")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchConditions:
    """Arguments of a benchmark: a temporary folder, and about how long to measure."""

    folder: Path
    seconds: float
    #: For `delay`: send so many that are not due for long, instead of waiting for them; 0: wait.
    pending: int = 0
    #: For `v2`: the language of the official client; "": the first that can be had.
    client: str = ""
    #: For `replicas`: the folder of a ZooKeeper's jars; "": none was given.
    zookeeper_home: str = ""
    #: For `replicas`: the folder of Apache RocketMQ's jars; "": it does not run.
    apache: str = ""


@dataclass(kw_only=True, slots=True)
class Figure:
    """One measurement; None where a column does not apply."""

    name: str
    messages_per_second: float | None = None
    bytes_per_second: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None
    server_cpu_seconds: float | None = None
    client_cpu_seconds: float | None = None
    server_rss_bytes: int | None = None
    #: What was measured, in one line.
    what: str = ""
    #: Messages in all, their size, and other facts of the run.
    facts: dict[str, Any] = field(default_factory=dict)
    #: Baselines of the same run, and the share of each that PocketMQ reaches.
    beside: dict[str, float] = field(default_factory=dict)
    #: Lines for people, below the result; programs read the facts.
    notes: list[str] = field(default_factory=list)
    #: (the measured value that the aim is for, the aim, True if more is better).
    aim: tuple[float, float, bool] | None = None

    def document(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        columns = ("messages_per_second", "bytes_per_second", "p50_ms", "p99_ms")
        cpu = ("server_cpu_seconds", "client_cpu_seconds", "server_rss_bytes")
        return {
            "name": self.name,
            **{name: rounded(getattr(self, name)) for name in columns + cpu},
            "beside": {name: rounded(value) for name, value in self.beside.items()},
            "aim": None
            if self.aim is None
            else {"value": rounded(self.aim[0]), "aim": self.aim[1], "met": self.met},
            "what": self.what,
            **{name: rounded(value) for name, value in self.facts.items()},
        }

    @property
    def met(self) -> bool | None:
        """Was the aim reached?"""
        if self.aim is None:
            return None
        value, aim, more_is_better = self.aim
        return value >= aim if more_is_better else value <= aim

    def add_rate(self, count: int, size_bytes: int, seconds: float) -> None:
        """Note that COUNT messages of together SIZE_BYTES took SECONDS."""
        self.messages_per_second = count / seconds
        self.bytes_per_second = size_bytes / seconds

    def add_latencies(self, seconds: Sequence[float]) -> None:
        """Note the median and the 99th percentile of latencies."""
        self.p50_ms, self.p99_ms = percentiles_ms(seconds)

    def compare(self, yardstick: str, value: float, ours: float) -> None:
        """Add the baseline YARDSTICK of this run, and the share that PocketMQ reaches with OURS."""
        self.beside[yardstick] = value
        self.beside[f"ratio_to_{yardstick.removesuffix('_per_second')}"] = ours / value


def rounded(value: Any) -> Any:
    """Return VALUE with as many digits as mean something."""
    if not isinstance(value, float):
        return value
    return round(value) if abs(value) >= 1000 else float(f"{value:.4g}")


def against(met: bool, aim: str) -> str:
    """Return the end of a note: was AIM MET?"""
    return f"aim {aim} {'met' if met else 'missed'}"


def percentiles_ms(seconds: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile of SECONDS, in milliseconds."""
    middle, high = np.percentile(np.asarray(seconds) * 1000, [50, 99])
    return float(middle), float(high)


def seconds_of(work: Callable[[], object]) -> float:
    """Return how long WORK takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def rounds(work: Callable[[], object], *, seconds: float, at_most: int = 1_000_000) -> list[float]:
    """Repeat WORK for SECONDS, or AT_MOST so often; return how long each round took."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < at_most and (not times or time.perf_counter() < end):
        times.append(seconds_of(work))
    return times


def own_cpu_seconds() -> float:
    """Return the CPU time that this process has used."""
    return time.process_time()


def machine() -> str:
    """Return the processors, the Python and the code that runs, and the load: others may use the same cores."""
    cores, model = len(os.sched_getaffinity(0)), ""
    with suppress(OSError):
        found = re.search(r"(?m)^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"))
        model = f" ({found[1].strip()})" if found else ""
    return (
        f"{cores} core{'s' * (cores > 1)}{model}, {platform.python_implementation()} {platform.python_version()},"
        f" {speedups.described()}, load before the run {os.getloadavg()[0]:.1f}"
    )


def memcpy_bytes_per_second(size_bytes: int) -> float:
    """Return how fast SIZE_BYTES are copied within memory that is already there, the best of five."""
    source = np.ones(size_bytes, np.uint8)
    target = np.zeros(size_bytes, np.uint8)
    return size_bytes / min(seconds_of(lambda: np.copyto(target, source)) for _ in range(5))


def synced_writes_per_second(
    folder: Path, *, size_bytes: int = 4096, seconds: float = 1.0
) -> float:
    """Return how often a second SIZE_BYTES can be written into a preallocated file and forced to disk."""
    path = folder / "synced-writes"
    data = b"\x5a" * size_bytes
    room = 64 * MIB
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, room)
        for at in range(0, room, MIB):
            os.pwrite(descriptor, b"\0" * MIB, at)
        os.fsync(descriptor)
        places = iter(range(0, room - size_bytes, size_bytes))

        def write() -> None:
            os.pwrite(descriptor, data, next(places))
            os.fdatasync(descriptor)

        times = rounds(write, seconds=seconds, at_most=room // size_bytes - 1)
    finally:
        os.close(descriptor)
        path.unlink()
    return len(times) / sum(times)


def figures_table(figures: Sequence[Figure]) -> tuple[list[str], list[list[str]]]:
    """Return titles and rows for people."""
    titles = [
        "bench",
        "msg/s",
        "MB/s",
        "p50 ms",
        "p99 ms",
        "server CPU s",
        "client CPU s",
        "RSS MB",
        "aim",
    ]
    return titles, [_row(figure) for figure in figures]


def _row(figure: Figure) -> list[str]:
    return [
        figure.name,
        _number(figure.messages_per_second, "{:,.0f}"),
        _number(figure.bytes_per_second, "{:,.1f}", 1e6),
        _number(figure.p50_ms, "{:,.2f}"),
        _number(figure.p99_ms, "{:,.2f}"),
        _number(figure.server_cpu_seconds, "{:.2f}"),
        _number(figure.client_cpu_seconds, "{:.2f}"),
        _number(figure.server_rss_bytes, "{:,.1f}", 1e6),
        _aim(figure),
    ]


def _number(value: float | None, form: str, unit: float = 1.0) -> str:
    return "-" if value is None else form.format(value / unit)


def _aim(figure: Figure) -> str:
    if figure.aim is None:
        return "-"
    value, aim, more_is_better = figure.aim
    sign = "≥" if more_is_better else "≤"
    return f"{sign} {aim:,g} {'met' if figure.met else f'missed: {rounded(value):,}'}"


def beside_line(beside: Mapping[str, float]) -> str:
    """Return the baselines of a result in one line."""
    return ", ".join(f"{name} {rounded(value):,}" for name, value in beside.items())
