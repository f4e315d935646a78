"""grpcio, which takes a tenth of a second to import, is loaded by nobody who has not asked for it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pocketmq.client import Message, Producer
from pocketmq.proto.carriers import GRPC_CHOICES

from ..served import ServerProcess
from .command import pocketmq

pytestmark = pytest.mark.processes

#: The line of Python's import times that tells of grpcio.
_GRPCIO = re.compile(r"^import time: .*\| +grpc$", re.MULTILINE)


@pytest.mark.parametrize("grpc", GRPC_CHOICES)
def test_a_server_serves_and_registers_without_it_unless_told_to(
    grpc: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    log = tmp_path / "told"

    with (
        ServerProcess(tmp_path / "store", "--grpc", grpc, log=log) as server,
        Producer(server.nameserver) as producer,
    ):
        producer.send(Message("orders", b"x"))

    assert (_GRPCIO.search(log.read_text()) is not None) == (grpc == "grpcio")


def test_sending_from_the_command_line_does_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ServerProcess(tmp_path / "store") as server:
        monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
        done = pocketmq("send", "orders", "hello", nameserver=server.nameserver)

    assert done.code == 0, done.err
    assert "pocketmq.client" in done.err
    assert _GRPCIO.search(done.err) is None
