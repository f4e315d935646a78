"""The bounds of queues: each broker is asked for many at once, one request after the other.

A member that gets very many queues looks at all of them in the same moment. With a call for each, what else it has to
say to their broker, renewals of leases first, would stand behind them or find no room (ChannelLimits.waiting_max). So
what is asked while a request is under way waits for the next one.

A broker answers for all queues of a request or for none, and an error does not say of which it is. One that passes is
the broker's own; after another, each half is asked for by itself, down to the queue that it is of.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TypeAlias

from ...proto.errors import ClientClosed, PocketMQError, QueueNotFound
from ...proto.gen import pocketmq_v1_pb2 as pb
from ..queue import QUEUES_AT_ONCE, Queue
from ..session import Session

_Answer: TypeAlias = asyncio.Future[pb.QueueOffsets]
#: What is not answered yet.
_Asked: TypeAlias = list[tuple[Queue, _Answer]]


class BoundsRequests:
    """Asks brokers for the bounds of queues. Not thread-safe: its event loop owns it."""

    def __init__(self, session: Session, timeout_ms: int) -> None:
        """TIMEOUT_MS: for each request."""
        self._session = session
        self._timeout_ms = timeout_ms
        #: By broker and time; there only while a task works on it.
        self._asked: dict[tuple[str, int | None], _Asked] = {}

    async def of(self, queue: Queue, time_ms: int | None = None) -> pb.QueueOffsets:
        """Return where QUEUE begins and ends, and the first message stored at or after TIME_MS, in Unix milliseconds.

        Raises what its broker refuses that with, and ClientClosed at the client's end.
        """
        key = queue.broker, time_ms
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = []
            asking = self._session.tasks.spawn(self._ask_all(queue.broker, time_ms, asked))
            asking.add_done_callback(partial(self._ended, key))
        answer: _Answer = asyncio.get_running_loop().create_future()
        asked.append((queue, answer))
        return await answer

    async def _ask_all(self, broker: str, time_ms: int | None, asked: _Asked) -> None:
        while asked:
            part = asked[:QUEUES_AT_ONCE]
            await self._ask(broker, time_ms, part)
            del asked[: len(part)]

    def _ended(self, key: tuple[str, int | None], asking: asyncio.Task[object]) -> None:
        """Let nobody wait any more: only the client's end breaks ASKING off."""
        closed = ClientClosed("the client was closed while a broker was asked for a queue's bounds")
        for _, answer in self._asked.pop(key):
            if not answer.done():
                answer.set_exception(closed)

    async def _ask(self, broker: str, time_ms: int | None, asked: _Asked) -> None:
        """Answer all of ASKED, with bounds or an error."""
        asked = [(queue, answer) for queue, answer in asked if not answer.done()]
        if not asked:
            return
        ids = [pb.QueueId(topic=queue.topic, queue=queue.number) for queue, _ in asked]
        try:
            reply = await self._session.ask(
                broker,
                "QueueOffsets",
                pb.QueueOffsetsRequest(queues=ids, time_ms=time_ms),
                pb.QueueOffsetsReply,
                self._timeout_ms,
            )
        except PocketMQError as error:
            if error.retriable or len(asked) == 1:
                _refuse(asked, error)
            else:
                half = len(asked) // 2
                await self._ask(broker, time_ms, asked[:half])
                await self._ask(broker, time_ms, asked[half:])
            return
        if len(reply.offsets) != len(asked):
            unknown = f"broker {broker} answered for {len(reply.offsets)} queues of {len(asked)}"
            return _refuse(asked, QueueNotFound(unknown))
        for (_, answer), bounds in zip(asked, reply.offsets, strict=True):
            if not answer.done():
                answer.set_result(bounds)


def _refuse(asked: _Asked, error: PocketMQError) -> None:
    for _, answer in asked:
        if not answer.done():
            answer.set_exception(error)
