"""A server that may not have more memory: that costs calls, or a start, at worst the process; never its store."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pocketmq.client import Admin, Producer, PullConsumer
from pocketmq.proto.errors import PocketMQError
from pocketmq.tools.options import READY

from ..served import ServerProcess

pytestmark = pytest.mark.processes

_MIB = 1 << 20
#: What a start may have, from far too little to enough.
LIMITS_MIB = (150, 200, 300, 450, 500, 550, 600, 650, 700, 800, 900, 1_000, 2_000)
#: Sets the limit, then becomes the server.
_LIMITED = """
import os, resource, sys
size = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_AS, (size, size))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def read(server: ServerProcess, group: str, count: int, *, within_s: float) -> set[bytes]:
    """Return the bodies of COUNT messages of T, or of those that come within so many seconds."""
    bodies: set[bytes] = set()
    deadline = time.monotonic() + within_s
    with PullConsumer(group, "T", server.nameserver) as consumer:
        while len(bodies) < count and time.monotonic() < deadline:
            bodies.update(message.body for message in consumer.poll(timeout_ms=1_000))
    return bodies


@pytest.mark.long
def test_a_server_at_its_limit_fails_calls_and_keeps_what_it_acknowledged(
    tmp_path: Path,
) -> None:
    with (
        ServerProcess(tmp_path / "store", log=tmp_path / "log") as server,
        Admin(server.nameserver) as admin,
        Producer(server.nameserver, delivery_timeout_ms=4_000) as producer,
    ):
        admin.create_topic("T", queues=1)
        sent = {b"%d" % number + bytes(200_000) for number in range(50)}
        for body in sent:
            producer.send("T", body)
        pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[0])
        limit = pages * resource.getpagesize()
        resource.prlimit(server.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))

        large = [b"%d" % number + bytes(3_900_000) for number in range(30)]
        # On a busy machine a round may end before it has needed anything.
        for _ in range(8):
            sent |= _ask_for_much(server, producer, large)
            if not server.is_running or _lacked_memory(tmp_path / "log"):
                break

        # Libraries in C that cannot go on without memory end the process: what it acknowledged is there all the same.
        has_ended = not server.is_running
        if not has_ended:
            resource.prlimit(
                server.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            )
            producer.send("T", b"afterwards")
            sent.add(b"afterwards")
            assert read(server, "after", len(sent), within_s=60) >= sent
            assert server.stop() == 0
    with ServerProcess(tmp_path / "store") as server:
        assert read(server, "behind", len(sent), within_s=60) >= sent
    assert has_ended or _lacked_memory(tmp_path / "log"), "the limit was none"


def _lacked_memory(log: Path) -> bool:
    said = log.read_text()
    return "MemoryError" in said or "Cannot allocate memory" in said


def _ask_for_much(server: ServerProcess, producer: Producer, large: list[bytes]) -> set[bytes]:
    """Read all there is, six times at once, and send LARGE meanwhile; return what of that was acknowledged."""
    # Reading needs maps of files, for which there is no room; what that costs others is their calls' affair.
    readers = [threading.Thread(target=_try_to_read, args=(server, n)) for n in range(6)]
    for reader in readers:
        reader.start()
    acknowledged: set[bytes] = set()
    sends = [(body, producer.send_nowait("T", body)) for body in large]
    for body, send in sends:
        with contextlib.suppress(PocketMQError):
            send.result()
            acknowledged.add(body)
    for reader in readers:
        reader.join()
    return acknowledged


def _try_to_read(server: ServerProcess, number: int) -> None:
    with contextlib.suppress(PocketMQError):
        read(server, f"reader-{number}", 150, within_s=5)


@pytest.mark.long
def test_a_start_without_enough_memory_says_so_and_the_next_one_finds_everything(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    with (
        ServerProcess(store, log=tmp_path / "log") as server,
        Admin(server.nameserver) as admin,
        Producer(server.nameserver) as producer,
    ):
        admin.create_topic("T", queues=4)
        sent = [b"%d" % number for number in range(50_000)]
        sends = [producer.send_nowait("T", body, key="k") for body in sent]
        for send in sends:
            send.result()
        server.kill()
    (store / "pocketmq" / "verified.json").unlink(missing_ok=True)

    codes = [_start(store, limit_mib * _MIB) for limit_mib in LIMITS_MIB]

    assert codes[0] != 0
    assert codes[-1] == 0
    with ServerProcess(store, log=tmp_path / "log") as server:
        assert read(server, "g", len(sent), within_s=60) == set(sent)
        assert server.stop() == 0


def _start(store: Path, size: int) -> int:
    """Start a server that may have SIZE bytes, and stop it; return its code. It says what it lacks."""
    serve = ["-m", "pocketmq.tools.cli", "serve", "--store", str(store)]
    command = [sys.executable, "-c", _LIMITED, str(size), *serve]
    with subprocess.Popen(
        [*command, "--port", "0", "--nameserver-port", "0"],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        if any(line.startswith(READY) for line in process.stdout):
            process.terminate()
        _, said = process.communicate(timeout=60)
    if process.returncode:
        reason, page = said.strip().splitlines()
        assert "memory" in reason, (size, said)
        assert page.startswith("See docs/errors.md#"), (size, said)
    return process.returncode
