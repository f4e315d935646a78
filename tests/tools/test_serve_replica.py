"""What a replica is not served with, or as: refused at the start, with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.replication.registry import LiveNode, Registry, ReplicaSetState
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.errors import ConfigError
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools import serve_replica
from pocketmq.tools.serve_replica import ReplicaServer
from pocketmq.tools.settings import load_settings

from ..broker.replication.memory_registry import Ensemble, MemoryRegistry
from ..free_ports import free_ports
from ..integration.command import pocketmq

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--grpc", "grpcio"), "--grpc grpcio needs a single broker"),
        (("--clock", "virtual"), "--clock virtual needs a single broker"),
    ],
)
def test_what_is_for_one_broker_is_refused(
    tmp_path: Path, words: tuple[str, str], said: str
) -> None:
    store = tmp_path / "store"
    replica = ("--replica-set", "orders", "--replica-id", "1", "--zookeeper", "127.0.0.1:1")

    done = pocketmq("broker", "--store", str(store), "--port", "0", *replica, *words)

    assert (done.code, store.exists()) == (2, False)
    assert said in done.err


async def test_a_replica_whose_id_is_taken_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (port,) = free_ports(1)
    listen = f"127.0.0.1:{port}"
    ensemble, clock = Ensemble(), SystemClock()
    ensemble.create(
        ReplicaSetState(epoch=0, master=0, in_sync=frozenset({1}), replicas={1: listen})
    )
    twin = ensemble.open()

    class Taken(MemoryRegistry):
        """The twin comes after this replica has looked, and before it says that it is there."""

        async def announce(self, replica_id: int, node: LiveNode) -> None:
            ensemble.announce(twin, 1, LiveNode(address="127.0.0.1:1", epoch=0, end=0))
            await super().announce(replica_id, node)

    class Registries:
        @staticmethod
        async def open(*_arguments: object, **_settings: object) -> Registry:
            return Taken(ensemble, clock.now_ms)

    monkeypatch.setattr(serve_replica, "ZooKeeperRegistry", Registries)
    replication: dict[str, Any] = {
        "replica_set": "orders",
        "replica_id": 1,
        "zookeeper": ("127.0.0.1:1",),
        "listen": listen,
    }
    settings = load_settings(None).with_options(
        store=tmp_path / "store", broker_port=0, nameservers="127.0.0.1:1", replication=replication
    )
    server = ReplicaServer(settings, disk=OsDisk(), clock=clock)

    with pytest.raises(ConfigError, match="replica id 1 is taken"):
        await server.start()

    assert ensemble.sessions == {twin}, "its own is over"
    assert not server.node.is_live
