"""`pocketmq health`, as a probe runs it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pocketmq.proto.carriers import GRPC_CHOICES
from pocketmq.proto.clock import VirtualClock

from ..fakes import FaultyDisk
from ..served import ServerProcess
from .command import Shell, pocketmq
from .whole_broker import broker, run_of, store_config

pytestmark = pytest.mark.processes


def test_servers_that_serve_are_told_one_a_line(call: Shell, server: ServerProcess) -> None:
    asked = ("health", "--nameserver", server.nameserver, "--broker", server.ready["broker"])

    assert call(*asked).out == (
        f"name server {server.nameserver}: SERVING\nbroker {server.ready['broker']}: SERVING\n"
    )
    assert call.done(*asked)[1] == {
        "server": "broker",
        "address": server.ready["broker"],
        "status": "SERVING",
    }


def test_without_options_the_name_servers_of_the_environment_are_asked(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCKETMQ_NAMESERVER", server.nameserver)

    done = pocketmq("health")

    assert (done.code, done.out) == (0, f"name server {server.nameserver}: SERVING\n")

    no_broker = pocketmq("health", "--writable")
    assert (no_broker.code, no_broker.out) == (2, "")
    assert "--writable checks brokers: add --broker HOST:PORT" in no_broker.err


@pytest.mark.parametrize("carrier", GRPC_CHOICES)
async def test_a_broker_that_cannot_write_serves_but_is_not_writable(
    tmp_path: Path, carrier: str
) -> None:
    disk, clock = FaultyDisk(), VirtualClock()
    async with broker(store_config(tmp_path), disk=disk, clock=clock, grpc=carrier) as (
        server,
        peer,
    ):
        ask = ("health", "--broker", server.address)
        ready = await asyncio.to_thread(pocketmq, *ask, "--writable")
        await peer.create_topic()
        disk.break_writes("commitlog")
        await peer.refusal(run_of([b"lost"]))

        alive = await asyncio.to_thread(pocketmq, *ask)
        full = await asyncio.to_thread(pocketmq, *ask, "--writable")

    assert (ready.code, alive.code, full.code) == (0, 0, 1)
    assert full.out == f"broker {server.address}: NOT_SERVING\n"


def test_a_server_that_has_no_such_service_does_not_serve(
    call: Shell, server: ServerProcess
) -> None:
    found = call("health", "--broker", server.nameserver, "--writable")

    assert (found.code, found.out) == (1, f"broker {server.nameserver}: SERVICE_UNKNOWN\n")


def _answering(answer: bytes, *, hang: bool = False) -> tuple[str, threading.Thread]:
    """Return the address of a port that answers its first connection with ANSWER, and its thread."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listening, listening.accept()[0] as peer:
            peer.recv(65_536)
            peer.sendall(answer)
            if hang:
                peer.settimeout(10)
                while peer.recv(65_536):
                    pass

    thread = threading.Thread(target=serve)
    thread.start()
    return f"127.0.0.1:{listening.getsockname()[1]}", thread


@pytest.mark.parametrize(
    ("answer", "hang", "said"),
    [
        (b"", False, "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", False, "ended the call"),
        (b"", True, "did not answer within 0.3 s"),
    ],
    ids=["closes", "other protocol", "silent"],
)
def test_a_port_that_is_not_ours_is_exit_code_4(
    call: Shell, answer: bytes, hang: bool, said: str
) -> None:
    address, thread = _answering(answer, hang=hang)

    found = call("health", "--broker", address, "--timeout", "300ms")
    thread.join()

    assert (found.code, found.out) == (4, "")
    assert said in found.err


def test_a_port_where_nobody_listens_is_exit_code_4(call: Shell) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"

        assert call("health", "--nameserver", address).code == 4


@pytest.mark.parametrize("address", ["nonsense", "host:", ":1", "host:0", "host:65536"])
def test_an_address_that_is_none_is_wrong_usage(call: Shell, address: str) -> None:
    assert call("health", "--broker", address).code == 2


def test_a_probe_imports_neither_numpy_nor_asyncio_nor_protobuf() -> None:
    program = (
        "import sys; import pocketmq.tools.cli, pocketmq.tools.health; "
        "print(sorted({'numpy', 'asyncio', 'google.protobuf', 'grpc', 'rich'} & sys.modules.keys()))"
    )

    printed = subprocess.check_output([sys.executable, "-c", program], text=True)

    assert printed == "[]\n"


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pocketmq", "--version"], capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith("pocketmq ")
