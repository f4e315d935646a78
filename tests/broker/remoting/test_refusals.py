"""Where a broker refuses classic clients: unsigned, in replica sets, with an unknown code, and if switched off."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pocketmq.proto.access.files import UserFile
from pocketmq.proto.access.users import UserEntry
from pocketmq.proto.clock import SystemClock
from pocketmq.proto.remoting.codes import RequestCode, ResponseCode
from pocketmq.proto.remoting.command import RemotingCommand, encode
from pocketmq.proto.remoting.refusal import refuse_for_replicas
from pocketmq.proto.remoting.server import RemotingProtocol

from .classic import Classic, consumer, sent, serving


async def test_a_broker_with_users_refuses_every_request_that_is_not_signed(tmp_path: Path) -> None:
    file = UserFile(tmp_path / "users.yaml")
    with file.change(make=True) as users:
        users["ada"] = UserEntry("ada", "secret", is_super=True)
    async with (
        serving(tmp_path, users=str(file.path)) as broker,
        await Classic.connect(broker) as client,
    ):
        for code in (*RequestCode, 9_999):
            answer = await client.ask(code, sent("orders") | {"AccessKey": "ada"}, b"x")
            assert answer.code == ResponseCode.NO_PERMISSION, RequestCode(code)
            assert not answer.body
        assert (await client.beat(consumer("g", "orders"))).code == ResponseCode.NO_PERMISSION
        client.begin(RequestCode.SEND_MESSAGE_V2, sent("orders"), b"one way", flag=2)
        assert (await client.send("orders", b"x")).code == ResponseCode.NO_PERMISSION
        assert broker.store.max_log_offset == 0
        assert broker._running is not None
        assert len(broker._running.parts.classic.members) == 0


async def test_an_unknown_code_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as broker, await Classic.connect(broker) as client:
        answer = await client.ask(200_050)

        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.remark == " request type 200050 not supported"


async def test_remoting_can_be_switched_off(tmp_path: Path) -> None:
    async with serving(tmp_path, remoting=False) as broker:
        host, port = broker.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(encode(RemotingCommand(code=RequestCode.GET_MAX_OFFSET)))
        assert await asyncio.wait_for(reader.read(1), 5) == b""
        writer.close()


class Link:
    """A connection that keeps what is written."""

    peer = "127.0.0.1:1"
    local_address = "127.0.0.1", 2
    is_secure = False
    certificate_names = ()
    unsent = 0

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def finish(self, reason: str) -> None:
        raise AssertionError(reason)

    abort = finish


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE_V2, RequestCode.HEART_BEAT, 9_999])
async def test_a_replica_refuses_every_request(code: int) -> None:
    protocol = RemotingProtocol(
        {}, bytes_max=1 << 20, now_ms=SystemClock().now_ms, check=refuse_for_replicas
    )
    link = Link()
    protocol.open(link).receive(encode(RemotingCommand(code=code, fields=sent("orders"))))

    (answer,) = link.written
    assert b"belongs to a replica set" in answer
