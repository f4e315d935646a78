"""The clients of a campaign, on one broker that is killed while they run: their history is complete and correct."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from pocketmq.store.config import StoreConfig

from ..crash.kill_campaign import CONFIG
from ..free_ports import free_port
from ..served import ServerProcess
from .history import History, Reign, check, tally
from .stored import ends_of, open_stopped, queues_of, replica_files
from .workload import QUEUES, TOPIC, Workload


async def at_work(history: History) -> None:
    """Return once clients have got on: fifty more messages acknowledged, and offsets of all queues committed."""
    limit = len(history.acknowledged) + 50
    async with asyncio.timeout(60):
        while len(history.acknowledged) < limit or len(history.committed) < QUEUES:  # noqa: ASYNC110 (many add to it)
            await asyncio.sleep(0.01)


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.campaign
async def test_what_clients_write_down_of_a_broker_that_is_killed_passes(tmp_path: Path) -> None:
    settings = tmp_path / "broker.yaml"
    settings.write_text(CONFIG, encoding="utf-8")
    ports = ["--port", str(free_port()), "--nameserver-port", str(free_port())]
    root = tmp_path / "store"

    def serve() -> ServerProcess:
        return ServerProcess(root, "--config", str(settings), *ports)

    server = await asyncio.to_thread(serve)
    history = History(cells=[Reign(1, 1)])
    workload = Workload(server.nameserver, history, seed=7, acks=("disk", "memory"))
    try:
        await workload.start()
        await at_work(history)
        await asyncio.to_thread(server.kill)
        server = await asyncio.to_thread(serve)
        await at_work(history)
        await workload.stop_sending()
        store = open_stopped(StoreConfig(path=str(root), **yaml.safe_load(CONFIG)["store"]))
        history.queues, history.confirm = queues_of(store, TOPIC, QUEUES), store.max_log_offset
        store.close()
        await workload.finish(ends_of(history.queues), 20.0)
    finally:
        await asyncio.to_thread(server.stop)
    history.replicas = [replica_files(1, root, history.confirm, history.confirm)]

    assert check(history) == []
    counts = tally(history)
    failed = sum(
        n for what, n in workload.failures.items() if what.startswith(("disk:", "memory:"))
    )
    assert counts["sent"] - failed == len(history.acknowledged) <= counts["stored"]
    assert counts["fetched"] >= 3 * counts["stored"] > 100
    assert counts["committed"] >= QUEUES
    assert set(ends_of(history.queues)) == set(range(QUEUES))
