"""`bench start` and `bench memory`: a broker that has served one client.

start     from starting `pocketmq serve` to the first acknowledged send over a new store, which also creates the
          topic. Baseline: an interpreter that starts, imports numpy and gRPC, and ends
memory    resident memory of `pocketmq serve` after one client. Baseline: an interpreter with these imports
"""

from __future__ import annotations

import subprocess
import sys
import time

from ...client import Message, Producer
from ..server_process import ServerProcess, rss_bytes
from .measure import BenchConditions, Figure, percentiles_ms, rounds
from .servers import server_with_topic

_ROUNDS = 5


def start(conditions: BenchConditions) -> Figure:
    """Measure starting."""
    figure = Figure(
        name="start", what="start of `pocketmq serve` to the first acknowledged send, a new store"
    )
    ready: list[float] = []
    acknowledged: list[float] = []
    for number in range(_ROUNDS):
        began = time.perf_counter()
        with ServerProcess(conditions.folder / f"store-{number}") as server:
            ready.append(time.perf_counter() - began)
            with Producer(server.nameserver) as producer:
                producer.send(Message("first", b"hello"))
            acknowledged.append(time.perf_counter() - began)
            figure.server_cpu_seconds = server.cpu_seconds()
            figure.server_rss_bytes = server.rss_bytes()
    figure.add_latencies(acknowledged)
    middle = percentiles_ms(acknowledged)[0] / 1000
    figure.facts = {
        "ready_p50_ms": percentiles_ms(ready)[0],
        "seconds_to_first_acknowledgement": middle,
    }
    imports = [sys.executable, "-c", "import numpy, google.protobuf.message"]
    bare = min(rounds(lambda: subprocess.run(imports, check=True), seconds=2, at_most=3))
    figure.compare("bare_interpreter_with_numpy_and_protobuf_seconds", bare, middle)
    figure.aim = (middle, 1.0, False)
    return figure


_SETTLE_S = 2.0


def memory(conditions: BenchConditions) -> Figure:
    """Measure memory at rest."""
    figure = Figure(
        name="memory", what="resident memory of an idle `pocketmq serve` with one topic"
    )
    with server_with_topic(conditions.folder) as server:
        before = server.cpu_seconds()
        time.sleep(_SETTLE_S)
        figure.server_cpu_seconds = server.cpu_seconds() - before
        figure.server_rss_bytes = server.rss_bytes()
    megabytes = figure.server_rss_bytes / 1e6
    figure.facts = {
        "idle_seconds": _SETTLE_S,
        "idle_cpu_percent": 100 * figure.server_cpu_seconds / _SETTLE_S,
    }
    figure.compare(
        "bare_interpreter_with_numpy_and_protobuf_megabytes", _bare_megabytes(), megabytes
    )
    figure.aim = (megabytes, 80.0, False)
    return figure


def _bare_megabytes() -> float:
    code = "import numpy, google.protobuf.message, sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        size_bytes = rss_bytes(process.pid)
        process.communicate(b"")
    return size_bytes / 1e6
