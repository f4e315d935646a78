"""The ports of `pocketmq replicas quickstart`: no other process takes them between their choice and their use."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from pocketmq.client import AsyncAdmin
from pocketmq.proto.errors import RouteNotFound
from pocketmq.tools.replicas.quickstart import Quickstart
from pocketmq.tools.zookeeper_server import LOOPBACK, free_ports


def test_no_outgoing_connection_takes_a_port_that_was_chosen() -> None:
    limits = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not limits.exists():
        pytest.skip("the ports of outgoing connections are known on Linux only")
    first, last = map(int, limits.read_text(encoding="utf-8").split())

    found = free_ports(50)

    assert len(set(found)) == 50
    assert not [port for port in found if first <= port <= last]


@pytest.mark.processes
async def test_a_name_server_whose_port_was_taken_meanwhile_gets_another_one(
    tmp_path: Path,
) -> None:
    port, zookeeper, own, replication = free_ports(4)
    replicas = [{"port": own, "replication": replication}]
    places = {"nameserver": port, "zookeeper": zookeeper, "replicas": replicas}
    (tmp_path / "quickstart.json").write_text(json.dumps(places), encoding="utf-8")
    start = Quickstart(tmp_path, "broker-a", 1, f"{LOOPBACK}:{zookeeper}", "")
    with socket.create_server((LOOPBACK, port)):
        try:
            await start.start_name_server()
            chosen = json.loads((tmp_path / "quickstart.json").read_text())["nameserver"]
            async with AsyncAdmin(f"{LOOPBACK}:{chosen}") as admin:
                with pytest.raises(RouteNotFound, match="no broker is registered"):
                    await admin.topics()
        finally:
            await start.stop()

    assert chosen != port
