"""`bench memory`: resident memory of an idle `pocketmq serve`, after it has served one client.

The yardstick is an interpreter that has imported numpy and gRPC, and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import time

from ..server_process import rss_bytes
from .measure import BenchConditions, Figure
from .servers import server_with_topic

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
    figure.compare("bare_interpreter_with_numpy_and_grpc_megabytes", _bare_megabytes(), megabytes)
    figure.aim = (megabytes, 80.0, False)
    return figure


def _bare_megabytes() -> float:
    code = "import numpy, grpc.aio, sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        size_bytes = rss_bytes(process.pid)
        process.communicate(b"")
    return size_bytes / 1e6
