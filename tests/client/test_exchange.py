"""Requests on a stream whose end and their own come together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pocketmq.client.streams import Exchange
from pocketmq.client.tasks import TaskGroup
from pocketmq.proto.errors import ClientClosed, ConnectFailed, MessageTooLarge, RequestTimeout
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc.channels import CallFailed, StatusCode


class Call:
    """A gRPC stream that never connects."""

    async def wait_for_connection(self) -> None:
        await asyncio.Event().wait()

    async def read(self) -> Any:
        await asyncio.Event().wait()

    def write_nowait(self, message: Any) -> bool:
        return False

    def deliver_to(self, take: Any) -> None:
        pass

    def cancel(self) -> None:
        pass


@pytest.fixture
async def tasks() -> Any:
    tasks = TaskGroup()
    yield tasks
    await tasks.close()


def exchange(tasks: TaskGroup) -> Exchange[pb.ProduceRun, pb.ProduceReply]:
    open_call: Any = Call
    return Exchange("192.0.2.1:1", open_call, "run_id", tasks)


@pytest.mark.parametrize("how", ["ask", "post"])
async def test_a_stream_that_breaks_at_the_deadline_says_why(tasks: TaskGroup, how: str) -> None:
    asking = exchange(tasks)

    asyncio.get_running_loop().call_soon(asking.close, ClientClosed("the end"))

    with pytest.raises(ClientClosed):
        await getattr(asking, how)(pb.ProduceRun(), 0)


@pytest.mark.parametrize("how", ["ask", "post"])
async def test_what_has_not_left_by_the_deadline_never_leaves(tasks: TaskGroup, how: str) -> None:
    with pytest.raises(ConnectFailed) as caught:
        await getattr(exchange(tasks), how)(pb.ProduceRun(), 0)

    assert not isinstance(caught.value, RequestTimeout)


class Connected(Call):
    """A stream that answers each request, and refuses to send those of more than 100 bytes; at first it CONNECTS."""

    def __init__(self, *, connects: bool) -> None:
        self.connecting = asyncio.Event()
        self._connects = connects
        self._take: Any = None
        if not connects:
            self.connecting.set()

    async def wait_for_connection(self) -> None:
        await self.connecting.wait()

    def write_nowait(self, message: Any) -> bool:
        if self._connects:
            return False
        if message.ByteSize() > 100:
            raise CallFailed(StatusCode.RESOURCE_EXHAUSTED, "sent message larger than max")
        self._take(pb.ProduceReply(run_id=message.run_id))
        return True

    async def write(self, message: Any) -> None:
        self._connects = False
        self.write_nowait(message)

    def deliver_to(self, take: Any) -> None:
        self._take = take

    def done(self) -> bool:
        return False


@pytest.mark.parametrize("connects", [False, True])
async def test_a_request_that_is_too_large_is_refused_at_once_and_others_are_answered(
    tasks: TaskGroup, connects: bool
) -> None:
    call = Connected(connects=connects)
    open_call: Any = lambda: call  # noqa: E731
    asking: Exchange[pb.ProduceRun, pb.ProduceReply] = Exchange(
        "192.0.2.1:1", open_call, "run_id", tasks
    )

    large = asyncio.ensure_future(asking.ask(pb.ProduceRun(records=bytes(200)), 60_000))
    told = asyncio.ensure_future(asking.post(pb.ProduceRun(records=bytes(300)), 60_000))
    small = asyncio.ensure_future(asking.ask(pb.ProduceRun(), 60_000))
    await asyncio.sleep(0)
    call.connecting.set()

    async with asyncio.timeout(30):
        for one in (large, told):
            with pytest.raises(MessageTooLarge):
                await one
        assert (await small).run_id == 3
        assert (await asking.ask(pb.ProduceRun(), 60_000)).run_id == 4
