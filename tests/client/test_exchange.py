"""Requests on a stream whose end and their own come together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pocketmq.client.streams import Exchange
from pocketmq.client.tasks import Tasks
from pocketmq.proto.errors import ClientClosed, RequestTimeout, Unreachable
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb


class Call:
    """A gRPC stream that never connects."""

    async def wait_for_connection(self) -> None:
        await asyncio.Event().wait()

    async def read(self) -> Any:
        await asyncio.Event().wait()

    def write_nowait(self, message: Any) -> bool:
        return False

    def hear(self, take: Any) -> None:
        pass

    def cancel(self) -> None:
        pass


@pytest.fixture
async def tasks() -> Any:
    tasks = Tasks()
    yield tasks
    await tasks.close()


def exchange(tasks: Tasks) -> Exchange[pb.ProduceRun, pb.ProduceReply]:
    open_call: Any = Call
    return Exchange("192.0.2.1:1", open_call, "run_id", tasks)


@pytest.mark.parametrize("how", ["ask", "tell"])
async def test_a_stream_that_breaks_at_the_deadline_says_why(tasks: Tasks, how: str) -> None:
    asking = exchange(tasks)

    asyncio.get_running_loop().call_soon(asking.close, ClientClosed("the end"))

    with pytest.raises(ClientClosed):
        await getattr(asking, how)(pb.ProduceRun(), 0)


@pytest.mark.parametrize("how", ["ask", "tell"])
async def test_what_has_not_left_by_the_deadline_never_leaves(tasks: Tasks, how: str) -> None:
    with pytest.raises(Unreachable) as caught:
        await getattr(exchange(tasks), how)(pb.ProduceRun(), 0)

    assert not isinstance(caught.value, RequestTimeout)
