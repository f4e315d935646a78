"""A server that is killed amid pops, as a process, and started again: what it had answered holds.

Its clock is virtual: no delivery ends before the test says so, however slow the machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.client import Admin
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

from ..served import ServerProcess
from .command import Shell
from .v2_caller import INVISIBLE_S, Caller

pytestmark = pytest.mark.processes

COUNT = 64


def received(caller: Caller, count: int) -> dict[bytes, v2.Message]:
    """Receive until there are COUNT."""
    found: dict[bytes, v2.Message] = {}
    while len(found) < count:
        found |= {message.body: message for message in caller.receive()}
    return found


@pytest.mark.long
def test_a_kill_brings_nothing_back_that_was_acknowledged(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "store", "--clock", "virtual") as server:
        caller = Caller(str(server.ready["broker"]))
        with Admin(server.nameserver) as admin:
            admin.create_topic("T", queues=2)
        for number in range(COUNT):
            caller.send(b"%d" % number)
        got = received(caller, COUNT)
        finished = [b"%d" % number for number in range(0, COUNT, 2)]
        for body in finished:
            caller.acknowledge(got.pop(body))
        server.kill()
        caller.channel.close()

    with ServerProcess(tmp_path / "store", "--clock", "virtual") as server:
        caller = Caller(str(server.ready["broker"]))
        by_old_handle = sorted(got)[:10]
        for body in by_old_handle:
            caller.acknowledge(got.pop(body))
        assert Shell(server.nameserver)("clock", "advance", f"{INVISIBLE_S}s").code == 0

        again = received(caller, len(got))

        assert set(again) == set(got)
        assert {one.system_properties.delivery_attempt for one in again.values()} == {2}
        assert server.stop() == 0
        caller.channel.close()
