"""Classic clients and replica sets: routes name the master alone, and no replica accepts remoting requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from pocketmq.proto.remoting.client import open_tcp, read_command
from pocketmq.proto.remoting.codes import RequestCode
from pocketmq.proto.remoting.command import REQUEST_MAX, RemotingCommand, encode

from ..broker.remoting.classic import sent
from ..served import need_own
from .served_set import ServedMember, served_set


async def asked(address: str, command: RemotingCommand) -> RemotingCommand:
    reader, writer = await open_tcp(address, 5)
    writer.write(encode(command))
    answer = await asyncio.wait_for(read_command(reader, REQUEST_MAX), 10)
    writer.close()
    assert answer is not None
    return answer


async def test_master_and_followers_refuse_remoting(tmp_path: Path) -> None:
    need_own("grpcio serves gRPC only")
    async with served_set(tmp_path, 2) as world:
        (master,) = world.masters
        assert isinstance(master, ServedMember)
        for number in world.members:
            member = world.served(number)
            command = RemotingCommand(code=RequestCode.SEND_MESSAGE_V2, fields=sent("orders"))
            answer = await asked(member.address, command)
            assert answer.code == 1
            assert "belongs to a replica set" in answer.remark

        route = RemotingCommand(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "TBW102"})
        while not (  # noqa: ASYNC110 (the test has a time limit)
            answer := await asked(world.name_server.address, route)
        ).body:
            await asyncio.sleep(0.05)
        (broker,) = json.loads(answer.body)["brokerDatas"]
        assert broker["brokerAddrs"] in ({"0": master.address}, {})
