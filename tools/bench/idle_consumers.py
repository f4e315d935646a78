"""`bench idle-consumers`: a thousand consumers in groups of a hundred that have nothing to do.

Each has its own connection, heartbeats, and fetches on one queue, in the periods of the client library. They only speak
the protocol, so that one process can be all of them; queries to name servers are not included.
"""

from __future__ import annotations

import asyncio
import time
from random import Random
from typing import Any, Final

from ...client import Admin
from ...client.config import ReadingConfig
from ...client.connections import BROKER
from ...client.consuming.membership import HEARTBEATS
from ...proto.gen import pocketmq_v1_pb2 as pb
from ...proto.rpc.channel import Http2Channel
from .measure import BenchConditions, Figure, against
from .servers import TOPIC, cpu_of_both, server_with_topic

CONSUMERS: Final = 1_000
GROUP_SIZE: Final = 100
_SETTINGS: Final = ReadingConfig()
HEARTBEAT_S: Final = _SETTINGS.session_timeout_ms / HEARTBEATS / 1_000
WAIT_MS: Final = _SETTINGS.fetch_max_wait_ms
_LEAST_S: Final = 60.0
#: How many come at once, and how long until the last generation is agreed on.
_COMING: Final = 50
CONSUMERS_SETTLE_S: Final = 3.0
AIM_BYTES: Final = 100_000_000
_AIM_PERCENT: Final = 5.0


def idle_consumers(conditions: BenchConditions) -> Figure:
    """Measure memory and CPU time of a broker with idle consumers."""
    figure = Figure(
        name="idle-consumers",
        what=f"{CONSUMERS:,} consumers without messages, {GROUP_SIZE} a group, each with its own connection",
    )
    with server_with_topic(conditions.folder, queues=GROUP_SIZE) as server:
        with Admin(server.nameserver) as admin:
            (broker,) = admin.brokers()
        before_bytes = server.rss_bytes()
        seconds = max(_LEAST_S, conditions.seconds)

        async def measure() -> None:
            consumers = [_Consumer(broker.address, number) for number in range(CONSUMERS)]
            for begin in range(0, CONSUMERS, _COMING):
                await asyncio.gather(*(one.begin() for one in consumers[begin : begin + _COMING]))
            await asyncio.sleep(CONSUMERS_SETTLE_S)
            with cpu_of_both(figure, server):
                await asyncio.sleep(seconds)
            assert all(one.is_fine for one in consumers), "a consumer lost its place"
            await asyncio.gather(*(one.end() for one in consumers))

        began = time.perf_counter()
        asyncio.run(measure())
        figure.facts["seconds"] = time.perf_counter() - began
    assert figure.server_rss_bytes is not None
    assert figure.server_cpu_seconds is not None
    more_bytes = figure.server_rss_bytes - before_bytes
    percent = 100 * figure.server_cpu_seconds / seconds
    figure.facts |= {
        "consumers": CONSUMERS,
        "more_bytes": more_bytes,
        "bytes_a_consumer": more_bytes / CONSUMERS,
        "more_bytes_aim_met": more_bytes <= AIM_BYTES,
        "cpu_percent_of_a_core": percent,
    }
    figure.notes += [
        f"{more_bytes / 1e6:.1f} MB more than before them, {against(more_bytes <= AIM_BYTES, '≤ 100 MB')}",
        f"{percent:.2f} % of a core over {seconds:.0f} s, {against(percent <= _AIM_PERCENT, '≤ 5 %')}",
    ]
    figure.aim = (percent, _AIM_PERCENT, False)
    return figure


class _Consumer:
    """One consumer: number N % GROUP_SIZE of its group."""

    def __init__(self, address: str, number: int) -> None:
        self._channel: Any = Http2Channel(address)
        self._group = f"idle-{number // GROUP_SIZE}"
        self._queue = number % GROUP_SIZE
        self._member_id = f"consumer-{number}@idle"
        self._random = Random(number)
        self._tasks: list[asyncio.Task[None]] = []
        self._token = 0

    @property
    def is_fine(self) -> bool:
        return bool(self._token) and not any(task.done() for task in self._tasks)

    async def begin(self) -> None:
        """Join, hold a queue, wait for a message."""
        member = self._open("JoinGroup", pb.MemberRequest, pb.MemberEvent)
        fetches = self._open("Fetch", pb.FetchRequest, pb.FetchReply)
        join = pb.Join(
            group=self._group,
            member_id=self._member_id,
            subscriptions=[pb.Subscription(topic=TOPIC)],
            strategy="idle",
        )
        await member.write(pb.MemberRequest(join=join))
        await self._lease()

        self._tasks = [
            asyncio.ensure_future(self._listen(member)),
            asyncio.ensure_future(self._beat(member)),
            asyncio.ensure_future(self._poll(fetches)),
        ]

    def _open(self, method: str, request: Any, reply: Any) -> Any:
        return self._channel.stream_stream(
            BROKER + method, request.SerializeToString, reply.FromString
        )()

    async def _beat(self, member: Any) -> None:
        await asyncio.sleep(self._random.random() * HEARTBEAT_S)
        while True:
            await member.write(pb.MemberRequest(heartbeat=pb.Heartbeat()))
            await asyncio.sleep(HEARTBEAT_S)

    async def _lease(self) -> None:
        call = self._channel.unary_unary(
            BROKER + "LeaseQueues", pb.LeaseRequest.SerializeToString, pb.LeaseReply.FromString
        )
        queues = [pb.QueueLease(topic=TOPIC, queue=self._queue)]
        request = pb.LeaseRequest(group=self._group, member_id=self._member_id, queues=queues)
        self._token = (await call(request)).queues[0].token

    async def _listen(self, member: Any) -> None:
        async for event in member:
            told = event.members
            if event.HasField("members") and told.leader == self._member_id:
                plan = pb.Plan(generation=told.generation)
                for number, one in enumerate(told.members):
                    held = pb.HeldQueue(topic=TOPIC, broker_name="broker-a", queue=number)
                    plan.shares.add(member_id=one.member_id, queues=[held])
                await member.write(pb.MemberRequest(plan=plan))

    async def _poll(self, fetches: Any) -> None:
        request = pb.FetchRequest(
            topic=TOPIC,
            queue=self._queue,
            group=self._group,
            min_bytes=1,
            max_wait_ms=WAIT_MS,
            lease=self._token,
        )
        while True:
            await fetches.write(request)
            reply = await fetches.read()
            assert not reply.error.name, reply.error.message

    async def end(self) -> None:
        """Go without a word."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()
