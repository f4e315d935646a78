"""How many threads, processes and nodes a listener needs, from what a call of it costs. Pure arithmetic.

T1 is the CPU time of a call, T2 the time that it waits. While one call waits others can work, so that C cores are busy
with C · (T1 + T2) / T1 threads. Python runs one thread of a process at a time: a process is worth one core, and has
(T1 + T2) / T1 threads; a node of C cores runs C processes. Nodes are counted so that their cores work for 70 % of the
time at the peak: queues grow without end where they work all the time.

Bounds: a process has `THREADS_MAX` threads at most. A listener that waits for so much more than it works is better one
of asyncio.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from .bench.stopwatch import Lap

THREADS_MAX: Final = 256
USE: Final = 0.7
#: A call is not taken to cost less CPU time than this: clocks of threads are not finer.
_CPU_LEAST_S: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """What is proposed for a node of `cores` cores, and for a peak if there is one."""

    calls: int
    failed: int
    #: T1 and T2, on average.
    cpu_s: float
    waiting_s: float
    slowest_s: float
    cores: int
    #: Of one process.
    threads: int
    #: Is (T1 + T2) / T1 more than a process may have?
    is_cut: bool
    #: Messages a second, of a node whose cores work for 70 % of the time.
    node_per_s: float
    peak_per_s: float | None
    nodes: int | None

    @property
    def members(self) -> int:
        """Processes in all; each needs a queue of its own."""
        return self.cores * (self.nodes or 1)


def advice(laps: Sequence[Lap], *, cores: int, peak_per_s: float | None = None) -> Advice:
    """Return what LAPS, of which there is one at least, propose."""
    cpu_s = max(sum(lap.cpu_s for lap in laps) / len(laps), _CPU_LEAST_S)
    wall_s = max(sum(lap.wall_s for lap in laps) / len(laps), cpu_s)
    ideal = _ceil(wall_s / cpu_s)
    threads = min(ideal, THREADS_MAX)
    process_per_s = min(USE / cpu_s, threads / wall_s)
    node_per_s = cores * process_per_s
    return Advice(
        calls=len(laps),
        failed=sum(lap.failed for lap in laps),
        cpu_s=cpu_s,
        waiting_s=wall_s - cpu_s,
        slowest_s=max(lap.wall_s for lap in laps),
        cores=cores,
        threads=threads,
        is_cut=ideal > THREADS_MAX,
        node_per_s=node_per_s,
        peak_per_s=peak_per_s,
        nodes=None if peak_per_s is None else max(1, _ceil(peak_per_s / node_per_s)),
    )


def _ceil(value: float) -> int:
    """Return VALUE rounded up, but for what floating point adds."""
    return math.ceil(round(value, 6))
