"""A server with few descriptors: queues and connections beyond them cost single calls, not the server or its store."""

from __future__ import annotations

import contextlib
import resource
import socket
from pathlib import Path

import pytest

from pocketmq.client import Admin, Producer
from pocketmq.proto.rpc.frames import PREFACE

from ..served import ServerProcess, need_own
from .command import Shell

pytestmark = pytest.mark.processes

DESCRIPTORS = 100
QUEUES = 300


@pytest.mark.long
def test_few_descriptors_serve_many_queues_refuse_connections_and_survive_a_kill(
    tmp_path: Path,
) -> None:
    need_own("grpcio does not say why it takes no connection")
    with ServerProcess(tmp_path / "store", log=tmp_path / "log") as server:
        limits = server.ready["limits"]
        assert 2 * limits["open_files"] + limits["connections"] <= limits["descriptors"]
        with Admin(server.nameserver) as admin, Producer(server.nameserver) as producer:
            admin.create_topic("T", queues=QUEUES)
            producer.send("T", b"0")
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))

            for number in range(1, QUEUES):
                producer.send("T", b"%d" % number)
            refused = beyond(str(server.ready["broker"]))
            producer.send("T", b"while others are refused")
            admin.create_topic("U", queues=QUEUES)
        assert refused > 0
        server.kill()
    said = (tmp_path / "log").read_text()
    assert "descriptors_left=0" in said
    assert "Traceback" not in said

    with ServerProcess(tmp_path / "store", log=tmp_path / "log") as server:
        bodies = {row["body"] for row in Shell(server.nameserver).consumed("T", QUEUES + 1)}
        assert len(bodies) == QUEUES + 1
        assert server.stop() == 0


def beyond(address: str) -> int:
    """Connect more often than there are descriptors; return how many connections were refused with a reason."""
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        peers = []
        for _ in range(2 * DESCRIPTORS):
            peers.append(stack.enter_context(socket.create_connection((host, int(port)), 10)))
            peers[-1].sendall(PREFACE)
        return sum(was_refused(peer) for peer in peers)


def was_refused(peer: socket.socket) -> bool:
    peer.settimeout(10)
    try:
        return b"no more files" in peer.recv(1 << 16)  # One that is served gets settings.
    except ConnectionError:
        return False
