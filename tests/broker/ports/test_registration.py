"""Registering with name servers: on start, on change, every period, after a loss; the end of the stream unregisters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from pocketmq.broker.ports.registration import PART_TOPICS, Registration, RegistrationState
from pocketmq.proto.carrier_grpcio import GrpcioCarrier
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import MasterFenced, Overloaded, PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import Stream, bidi, service
from pocketmq.proto.rpc.channel import Http2Channel

PERIOD_MS = 30_000


class FakeNameServer:
    """Takes registrations, and keeps what it was told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[pb.BrokerRegistration] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.ask_again = False
        self.refuse: PocketMQError | None = None
        self.takes_changes = False
        self.opened = 0
        self.streams: list[Stream] = []
        self._carrier: GrpcioCarrier | None = None
        self._port = 0

    async def start(self) -> str:
        table = service(
            "pocketmq.v1.NameServer",
            {"Register": bidi(pb.BrokerRegistration, pb.RegistrationReply, self._open)},
        )
        self._carrier = GrpcioCarrier([table])
        self._port = await self._carrier.start(port=self._port)
        return f"127.0.0.1:{self._port}"

    async def stop(self) -> None:
        assert self._carrier is not None
        await self._carrier.stop(grace_s=0)

    def _open(self, stream: Stream) -> _Session:
        self.opened += 1
        self.streams.append(stream)
        return _Session(self, stream)


class _Session:
    def __init__(self, server: FakeNameServer, stream: Stream) -> None:
        self._server = server
        self._stream = stream

    def on_message(self, message: pb.BrokerRegistration) -> None:
        if self._server.refuse is not None:
            raise self._server.refuse
        self._server.told.put_nowait(message)
        again, self._server.ask_again = self._server.ask_again, False
        self._stream.send(
            pb.RegistrationReply(send_topics=again, takes_changes=self._server.takes_changes)
        )

    def on_end(self) -> None:
        self._stream.finish()

    def on_close(self) -> None:
        self._server.ended.set()


class Rig:
    """A registration with the state that the test gives it."""

    def __init__(self, *addresses: str) -> None:
        self.clock = VirtualClock()
        self.version = 1
        self.topics: dict[str, int] = {}
        self.changed: dict[int, set[str]] = {}
        state = RegistrationState(self.head, self.names, self.topic, self.changed.get)
        self.registration = Registration(
            addresses, state, self.clock, Random(1), PERIOD_MS, Http2Channel
        )

    def head(self) -> pb.BrokerRegistration:
        return pb.BrokerRegistration(
            cluster="C", broker_name="b", address="h:1", data_version=self.version
        )

    def names(self) -> list[str]:
        return list(self.topics) or [f"T{number}" for number in range(self.version)]

    def topic(self, name: str) -> pb.TopicConfig | None:
        if self.topics and name not in self.topics:
            return None
        return pb.TopicConfig(name=name, read_queues=self.topics.get(name, 0))

    def state(self) -> pb.BrokerRegistration:
        """The whole of it."""
        whole = self.head()
        whole.topics.extend(topic for name in self.names() if (topic := self.topic(name)))
        return whole


@pytest.fixture
async def server() -> AsyncIterator[FakeNameServer]:
    server = FakeNameServer()
    yield server
    await server.stop()


@pytest.fixture
async def rig(server: FakeNameServer) -> AsyncIterator[Rig]:
    rig = Rig(await server.start())
    rig.registration.start()
    yield rig
    await rig.registration.stop()


async def test_the_whole_state_is_told_on_start(server: FakeNameServer, rig: Rig) -> None:
    assert await server.told.get() == rig.state()
    await rig.registration.registered()


async def test_a_heartbeat_follows_every_period(server: FakeNameServer, rig: Rig) -> None:
    await server.told.get()
    await rig.registration.registered()

    for _ in range(2):
        await rig.clock.advance(PERIOD_MS)
        beat = await server.told.get()
        assert (beat.unchanged, beat.data_version, list(beat.topics)) == (True, 1, [])


async def test_a_move_over_many_periods_tells_each(server: FakeNameServer, rig: Rig) -> None:
    await server.told.get()
    await rig.registration.registered()

    await rig.clock.advance(50 * PERIOD_MS)

    assert server.told.qsize() == 50


async def test_a_change_is_told_at_once_and_waited_for(server: FakeNameServer, rig: Rig) -> None:
    await rig.registration.registered()
    await server.told.get()
    rig.version = 2

    await rig.registration.announced()

    assert server.told.get_nowait() == rig.state()
    await rig.registration.announced()
    assert server.told.empty()


async def test_who_asks_for_the_topics_gets_them(server: FakeNameServer, rig: Rig) -> None:
    await rig.registration.registered()
    await server.told.get()
    server.ask_again = True

    await rig.clock.advance(PERIOD_MS)

    assert (await server.told.get()).unchanged
    assert await server.told.get() == rig.state()


async def test_stopping_ends_the_stream(server: FakeNameServer, rig: Rig) -> None:
    await rig.registration.registered()

    await rig.registration.stop()

    await server.ended.wait()


async def test_a_lost_stream_is_opened_again_with_the_whole_state(
    server: FakeNameServer, rig: Rig
) -> None:
    await rig.registration.registered()
    await server.told.get()

    server.streams[-1].finish()
    await server.ended.wait()
    while server.opened < 2:
        await rig.clock.advance(100)

    assert await server.told.get() == rig.state()


@pytest.mark.parametrize(
    "refusal", [Overloaded("too many brokers"), MasterFenced("epoch 7 is claimed, epoch 8 holds")]
)
async def test_a_refusal_is_logged_once_and_tried_again(
    server: FakeNameServer, caplog: pytest.LogCaptureFixture, refusal: PocketMQError
) -> None:
    server.refuse = refusal
    rig = Rig(await server.start())
    rig.registration.start()

    while server.opened < 4:
        await rig.clock.advance(100)
    server.refuse = None
    while server.told.empty():
        await rig.clock.advance(100)
    await rig.registration.registered()
    await rig.registration.stop()

    warnings = [r for r in caplog.records if refusal.message in r.message]
    assert len(warnings) == 1


async def test_nobody_waits_for_a_name_server_that_is_not_there(server: FakeNameServer) -> None:
    live = await server.start()
    absent = FakeNameServer()
    gone = await absent.start()
    await absent.stop()
    rig = Rig(gone, live)
    rig.registration.start()
    await server.told.get()
    rig.version = 2

    await rig.registration.announced()

    await rig.registration.stop()


async def test_only_what_changed_is_told_to_a_name_server_that_takes_changes(
    server: FakeNameServer,
) -> None:
    server.takes_changes = True
    rig = Rig(await server.start())
    rig.topics = {"A": 1, "B": 1}
    rig.registration.start()
    await rig.registration.registered()
    assert await server.told.get() == rig.state()

    rig.topics = {"A": 2, "C": 1}
    rig.version, rig.changed[1] = 2, {"A", "B", "C"}
    rig.registration.changed()
    await rig.registration.announced()

    told = await server.told.get()
    assert (told.changed_since, told.data_version, list(told.gone)) == (1, 2, ["B"])
    assert {topic.name: topic.read_queues for topic in told.topics} == {"A": 2, "C": 1}
    await rig.registration.stop()


async def test_a_change_that_is_not_known_any_more_is_told_as_the_whole_state(
    server: FakeNameServer, rig: Rig
) -> None:
    server.takes_changes = True
    assert not (await server.told.get()).unchanged
    await rig.registration.registered()

    rig.version = 2
    rig.registration.changed()
    await rig.registration.announced()

    assert await server.told.get() == rig.state()


@pytest.mark.parametrize("takes_changes", [True, False])
async def test_many_topics_are_told_in_parts_where_those_are_understood(
    server: FakeNameServer, takes_changes: bool
) -> None:
    server.takes_changes, server.ask_again = takes_changes, True
    rig = Rig(await server.start())
    rig.topics = {f"T{number}": 1 for number in range(2 * PART_TOPICS + 1)}
    rig.registration.start()
    await rig.registration.registered()

    assert (await server.told.get()).unchanged
    told = [server.told.get_nowait() for _ in range(server.told.qsize())]
    sizes = [PART_TOPICS, PART_TOPICS, 1] if takes_changes else [2 * PART_TOPICS + 1]
    assert [len(one.topics) for one in told] == sizes
    assert [one.more for one in told] == [True] * (len(told) - 1) + [False]
    assert [topic.name for one in told for topic in one.topics] == list(rig.topics)
    await rig.registration.stop()
