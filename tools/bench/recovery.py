"""`bench recovery`: from start to serving, with a log of 1 GiB of 1 KiB messages (in the page cache) after `kill -9`.

Baseline: the CRC of the same bytes, which recovery must compute.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from pathlib import Path
from typing import Final

from ...client import AsyncProducer
from ..server_process import ServerProcess
from . import measure, servers

BODY_BYTES: Final = 1024
LOG_BYTES: Final = 1024 * measure.MIB
_BATCH: Final = 1_000
_RECORD_BYTES: Final = servers.record_bytes(BODY_BYTES)


def recovery(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure recovery after a kill."""
    figure = measure.Figure(
        name="recovery", what="start to serving over 1 GiB of 1 KiB messages left by kill -9"
    )
    store = conditions.folder / "store"
    with servers.server_with_topic(conditions.folder) as server:
        count = asyncio.run(_fill(server.nameserver))
        server.kill()
    began = time.perf_counter()
    with ServerProcess(store) as server:
        seconds = time.perf_counter() - began
        figure.server_cpu_seconds = server.cpu_seconds()
        figure.server_rss_bytes = server.rss_bytes()
        report = server.ready["recovery"]
    figure.add_rate(count, count * BODY_BYTES, seconds)
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "seconds_to_serving": seconds,
        "recovery": report,
    }
    figure.compare("crc_of_the_log_seconds", crc_seconds(store), seconds)
    figure.aim = (seconds, 2.5, False)
    return figure


async def _fill(nameserver: str) -> int:
    """Send as many messages as fit the log; return how many."""
    batches = LOG_BYTES // (_RECORD_BYTES * _BATCH)
    async with AsyncProducer(nameserver) as producer:
        for at in range(0, batches, 16):
            some = range(min(16, batches - at))
            await asyncio.gather(
                *(producer.send_many(servers.batch(_BATCH, BODY_BYTES)) for _ in some)
            )
    return batches * _BATCH


def crc_seconds(store: Path) -> float:
    """Return how long the CRC of the log's bytes takes."""

    def compute() -> None:
        for path in sorted((store / "commitlog").iterdir()):
            with path.open("rb") as file:
                while data := file.read(measure.MIB):
                    zlib.crc32(data)

    return measure.seconds_of(compute)
