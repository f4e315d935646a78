"""`bench delay --pending N`: what N scheduled messages cost that are due within a day.

The insert rate, bytes on disk, memory, and restarts after a clean stop and after `kill -9`. The baseline is a server
with an empty store.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...client.connections import BROKER, GrpcConnections
from ...proto.clock import SystemClock
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..server_process import ServerProcess
from . import measure, servers
from .scheduled_batches import BODY_BYTES, RECORD_BYTES, insert

_PENDING_SEED: Final = 21
#: None falls due while the bench runs.
_FIRST_MS: Final = 2 * 3_600_000
_DAY_MS: Final = 86_400_000
_STATUS_TIMEOUT_MS: Final = 30_000


def pending(conditions: measure.BenchConditions) -> measure.Figure:
    """Measure messages that wait."""
    count = conditions.pending
    figure = measure.Figure(
        name="delay",
        what=f"{count:,} messages of {BODY_BYTES} B due within a day, sent, and there after restarts",
    )
    store = conditions.folder / "store"
    with servers.server_with_topic(conditions.folder) as server:
        empty = _Standing(server)
        random = np.random.default_rng(_PENDING_SEED)
        due_ms = SystemClock().unix_ms() + _FIRST_MS + random.integers(0, _DAY_MS, count)
        with servers.cpu_of_both(figure, server):
            seconds = asyncio.run(insert(server.nameserver, due_ms))
        full = _Standing(server)
        stop_s = measure.seconds_of(server.stop)
    figure.add_rate(count, count * BODY_BYTES, seconds)
    with _started(store) as (clean_s, server):
        clean = _Standing(server)
        server.kill()
    with _started(store) as (killed_s, server):
        killed = _Standing(server)
    with _started(conditions.folder / "empty") as (empty_s, server):
        pass
    disk = disk_bytes(store)
    figure.facts = {
        "messages": count,
        "body_bytes": BODY_BYTES,
        "record_bytes": RECORD_BYTES,
        "disk_bytes": sum(disk.values()),
        "disk_bytes_by_folder": disk,
        "rss_empty_bytes": empty.rss_bytes,
        "rss_full_bytes": full.rss_bytes,
        "rss_after_restart_bytes": clean.rss_bytes,
        "rss_after_kill_bytes": killed.rss_bytes,
        "own_empty_bytes": empty.own_bytes,
        "own_full_bytes": full.own_bytes,
        "own_after_restart_bytes": clean.own_bytes,
        "stop_seconds": stop_s,
        "restart_seconds": clean_s,
        "restart_after_kill_seconds": killed_s,
        "waiting": [full.waiting, clean.waiting, killed.waiting],
    }
    _tell(figure, {"sent": full, "restarted": clean, "killed": killed})
    figure.compare("record_bytes", count * RECORD_BYTES, sum(disk.values()))
    figure.compare("empty_server_own_bytes", empty.own_bytes, full.own_bytes)
    figure.compare("empty_server_start_seconds", empty_s, clean_s)
    return figure


class _Standing:
    """State of a server: resident memory, its private part, and the number of pending messages."""

    def __init__(self, server: ServerProcess) -> None:
        self.waiting = asyncio.run(_waiting(server.ready["broker"]))
        self.rss_bytes = server.rss_bytes()
        self.own_bytes = own_memory_bytes(server.pid)


def own_memory_bytes(pid: int) -> int:
    """Return the resident memory of process PID that no file backs."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


async def _waiting(address: str) -> int:
    connections = GrpcConnections()
    try:
        reply = await connections.to(address).call(
            BROKER + "Status", pb.BrokerStatusRequest(), pb.BrokerStatusReply, _STATUS_TIMEOUT_MS
        )
    finally:
        await connections.close()
    return reply.delayed_waiting


@contextmanager
def _started(store: Path) -> Iterator[tuple[float, ServerProcess]]:
    """Start a server over STORE; yield the seconds until it served, and it."""
    began = time.perf_counter()
    with ServerProcess(store) as server:
        yield time.perf_counter() - began, server


def disk_bytes(store: Path) -> dict[str, int]:
    """Return the bytes of the blocks that the files of STORE have, by folder or file directly below it."""
    found: dict[str, int] = {}
    for path in store.rglob("*"):
        if path.is_file():
            name = path.relative_to(store).parts[0]
            found[name] = found.get(name, 0) + path.stat().st_blocks * 512
    return dict(sorted(found.items()))


def _tell(figure: measure.Figure, standings: dict[str, _Standing]) -> None:
    facts = figure.facts
    count = facts["messages"]
    lost = {name: count - standing.waiting for name, standing in standings.items()}
    figure.notes += [
        f"disk {facts['disk_bytes'] / 1e6:,.0f} MB, {facts['disk_bytes'] / count:,.0f} B a message",
        _memory_line("server memory", facts, "rss"),
        _memory_line("of it not the store's files", facts, "own"),
        f"stop {facts['stop_seconds']:.1f} s, restart {facts['restart_seconds']:.1f} s, after kill -9 "
        f"{facts['restart_after_kill_seconds']:.1f} s",
        "missing when " + ", ".join(f"{name} {number:,}" for name, number in lost.items()),
    ]


def _memory_line(what: str, facts: dict[str, Any], kind: str) -> str:
    empty, full, again = (
        f"{facts[f'{kind}_{when}_bytes'] / 1e6:,.0f} MB"
        for when in ("empty", "full", "after_restart")
    )
    return f"{what}: {empty} empty, {full} with all, {again} after a restart"
