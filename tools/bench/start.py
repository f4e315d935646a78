"""`bench start`: from starting `pocketmq serve` to the first acknowledged send, over a new store.

The process is started, its ready line is read, and a client that was imported before connects, finds the route of a
topic that is created by the send, and waits for the acknowledgement. The yardstick is an interpreter that starts,
imports numpy and gRPC, and ends.
"""

from __future__ import annotations

import subprocess
import sys
import time

from ...client import Message, Producer
from ..server_process import ServerProcess
from .measure import BenchConditions, Figure, percentiles_ms, rounds

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
    imports = [sys.executable, "-c", "import numpy, grpc.aio"]
    bare = min(rounds(lambda: subprocess.run(imports, check=True), seconds=2, at_most=3))
    figure.compare("bare_interpreter_with_numpy_and_grpc_seconds", bare, middle)
    figure.aim = (middle, 1.0, False)
    return figure
