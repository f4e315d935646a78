"""Messages that come again, and dead letters, from the client's side: against a cluster in memory."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from pocketmq.client import Admin, AsyncAdmin, AsyncPullConsumer, PullConsumer
from pocketmq.client.administration.dead_letters import DeadLetter
from pocketmq.client.consuming.sending_back import SendBackResult
from pocketmq.client.received_message import FetchedRun
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    ClientClosed,
    GroupNotFound,
    InvalidArgument,
    MessageNotFound,
    RouteNotFound,
)
from pocketmq.proto.errors_wire import to_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import NO_HOST, Record, encode_record, encode_run
from pocketmq.proto.rpc import MethodTable, service, unary

from .fake_broker import FakeBroker, add_topic
from .fake_cluster import FakeCluster, serve
from .fake_connections import FakeConnections

RETRIES = "%RETRY%billing"


@dataclass
class RetryingBroker(FakeBroker):
    """A broker that takes messages back, and has dead letters."""

    known_groups: set[str] = field(default_factory=lambda: {"billing"})
    sent_back: list[pb.SendBackRequest] = field(default_factory=list)
    letters: list[pb.DeadLetter] = field(default_factory=list)
    resent: list[pb.ResendDeadLettersRequest] = field(default_factory=list)
    purged: list[int] = field(default_factory=list)
    #: Letters in one answer.
    page: int = 2

    def commit(self, request: pb.CommitOffsetsRequest, _: Any) -> pb.CommitOffsetsReply:
        self.known_groups.add(request.group)
        return super().commit(request, _)

    def check_group(self, group: str) -> None:
        if group not in self.known_groups:
            raise GroupNotFound(f"group {group!r} does not exist")

    def send_back(self, request: pb.SendBackRequest, _: Any) -> pb.SendBackReply:
        self.check_group(request.group)
        self.sent_back.append(request)
        dead = request.delay_level < 0
        topic = ("%DLQ%" if dead else "%RETRY%") + request.group
        add_topic(self, topic, 1)
        return pb.SendBackReply(dead=dead, topic=topic, due_ms=77, reconsume_times=1)

    def list_letters(self, request: pb.DeadLettersRequest, _: Any) -> pb.DeadLettersReply:
        self.check_group(request.group)
        end = request.from_offset + min(self.page, request.max_letters)
        found = self.letters[request.from_offset : end]
        return pb.DeadLettersReply(
            letters=found,
            next_offset=request.from_offset + len(found),
            max_offset=len(self.letters),
        )

    def resend(self, request: pb.ResendDeadLettersRequest, _: Any) -> pb.ResendDeadLettersReply:
        self.check_group(request.group)
        self.resent.append(pb.ResendDeadLettersRequest.FromString(request.SerializeToString()))
        reply = pb.ResendDeadLettersReply()
        for offset in request.queue_offsets:
            letter = reply.letters.add(queue_offset=offset, topic=request.topic or "orders")
            if offset >= len(self.letters):
                letter.error.CopyFrom(to_wire(MessageNotFound(f"no dead letter {offset}")))
        return reply

    def purge(self, request: pb.PurgeDeadLettersRequest, _: Any) -> pb.PurgeDeadLettersReply:
        self.check_group(request.group)
        self.purged.append(request.below_offset)
        return pb.PurgeDeadLettersReply(purged=request.below_offset or len(self.letters))

    def methods(self) -> MethodTable:
        return super().methods() | service(
            "pocketmq.v1.Broker",
            {
                "SendBack": unary(pb.SendBackRequest, pb.SendBackReply, self.send_back),
                "DeadLetters": unary(pb.DeadLettersRequest, pb.DeadLettersReply, self.list_letters),
                "ResendDeadLetters": unary(
                    pb.ResendDeadLettersRequest, pb.ResendDeadLettersReply, self.resend
                ),
                "PurgeDeadLetters": unary(
                    pb.PurgeDeadLettersRequest, pb.PurgeDeadLettersReply, self.purge
                ),
            },
        )


@pytest.fixture
def broker() -> RetryingBroker:
    made = RetryingBroker("broker-a", "127.0.0.1:8081")
    add_topic(made, "orders", 1)
    return made


def consumer(
    broker: FakeBroker, clock: VirtualClock | None = None, topics: Any = "orders", **settings: Any
) -> AsyncPullConsumer:
    return AsyncPullConsumer(
        "billing",
        topics,
        clock=clock or VirtualClock(),
        connections=FakeConnections(FakeCluster(broker)),
        **settings,
    )


def store(broker: FakeBroker, topic: str, body: bytes, **properties: str) -> None:
    rows = [(body, encode_properties(properties))]
    records, sizes = encode_run(topic, 0, rows, born_timestamp_ms=1, born_host=NO_HOST)
    broker.produce(pb.ProduceRun(topic=topic, queue=0, records=records, sizes=sizes))


class TestSendingBack:
    """What the consumer says of a message that failed."""

    async def test_the_broker_is_told_which_message_and_what_is_wished(
        self, broker: RetryingBroker
    ) -> None:
        for number in range(3):
            store(broker, "orders", b"%d" % number)

        async with consumer(broker) as reading:
            *_, last = await reading.poll()
            sent = await reading.send_back(last, delay_level=4, reason="no such customer")

        assert broker.sent_back == [
            pb.SendBackRequest(
                group="billing",
                topic="orders",
                queue=0,
                queue_offset=2,
                log_offset=last.log_offset,
                delay_level=4,
                reason="no such customer",
            )
        ]
        assert sent == SendBackResult(dead=False, topic=RETRIES, due_ms=77, reconsume_times=1)

    async def test_a_reason_that_is_no_text_is_escaped(self, broker: RetryingBroker) -> None:
        store(broker, "orders", b"1")

        async with consumer(broker) as reading:
            (message,) = await reading.poll()
            await reading.send_back(message, reason="caf\udce9.txt not there")

        assert [one.reason for one in broker.sent_back] == ["caf\\udce9.txt not there"]

    async def test_a_group_that_has_never_committed_is_made_first(
        self, broker: RetryingBroker
    ) -> None:
        broker.known_groups.clear()
        store(broker, "orders", b"1")

        async with consumer(broker) as reading:
            (message,) = await reading.poll()
            sent = await reading.send_back(message, delay_level=-1)

        assert sent.dead
        assert len(broker.sent_back) == 1

    async def test_a_message_of_an_unknown_broker_is_refused(self, broker: RetryingBroker) -> None:
        store(broker, "orders", b"1")
        run = FetchedRun("elsewhere", broker.queues["orders", 0][0])

        async with consumer(broker) as reading:
            with pytest.raises(RouteNotFound, match="elsewhere"):
                await reading.send_back(run.messages()[0])

    async def test_a_closed_consumer_sends_nothing_back(self, broker: RetryingBroker) -> None:
        store(broker, "orders", b"1")
        async with consumer(broker) as reading:
            (message,) = await reading.poll()

        with pytest.raises(ClientClosed):
            await reading.send_back(message)
        assert broker.sent_back == []


class TestReadingRetries:
    """A consumer reads its group's retry topic besides its own topics."""

    async def test_what_comes_again_names_its_topic_and_its_count(
        self, broker: RetryingBroker
    ) -> None:
        add_topic(broker, RETRIES, 1)
        record = Record(
            topic=RETRIES,
            body=b"again",
            reconsume_times=2,
            properties={"RETRY_TOPIC": "orders"},
        )
        data = encode_record(record)
        broker.queues[RETRIES, 0] = [data]

        async with consumer(broker) as reading:
            (message,) = await reading.poll()
            assert (message.topic, message.origin_topic) == (RETRIES, "orders")
            assert (message.body, message.reconsume_times) == (b"again", 2)

        assert broker.committed["billing", RETRIES, 0] == 1

    async def test_they_are_not_read_if_that_is_turned_off(self, broker: RetryingBroker) -> None:
        add_topic(broker, RETRIES, 1)
        store(broker, RETRIES, b"again")

        async with consumer(broker, enable_retries=False) as reading:
            await settle()
            assert await reading.poll(timeout_ms=0) == []

    async def test_who_has_retries_off_sends_nothing_back_but_to_the_dead(
        self, broker: RetryingBroker
    ) -> None:
        add_topic(broker, "orders", 1)
        store(broker, "orders", b"one")

        async with consumer(broker, enable_retries=False) as reading:
            (message,) = await reading.poll()
            with pytest.raises(InvalidArgument, match="enable_retries=False"):
                await reading.send_back(message)
            await reading.send_back(message, delay_level=-1)

        assert [request.delay_level for request in broker.sent_back] == [-1]

    async def test_without_topics_nothing_is_read(self, broker: RetryingBroker) -> None:
        add_topic(broker, RETRIES, 1)
        store(broker, RETRIES, b"again")

        async with consumer(broker, topics=()) as reading:
            await settle()
            assert await reading.poll(timeout_ms=0) == []

    async def test_who_names_the_retry_topic_reads_it_once(self, broker: RetryingBroker) -> None:
        add_topic(broker, RETRIES, 1)
        store(broker, RETRIES, b"again")

        async with consumer(broker, topics=["orders", RETRIES]) as reading:
            assert len(await reading.poll()) == 1
            await settle()
            assert await reading.poll(timeout_ms=0) == []

    async def test_a_start_at_the_latest_message_skips_no_retry(
        self, broker: RetryingBroker
    ) -> None:
        add_topic(broker, RETRIES, 1)
        store(broker, "orders", b"old")
        store(broker, RETRIES, b"again")

        async with consumer(broker, start="latest") as reading:
            assert [message.body for message in await reading.poll()] == [b"again"]
            await settle()
            assert await reading.poll(timeout_ms=0) == []

    async def test_a_retry_topic_that_the_first_send_back_makes_is_read_at_once(
        self, broker: RetryingBroker
    ) -> None:
        clock = VirtualClock()
        store(broker, "orders", b"1")

        async with consumer(broker, clock) as reading:
            (message,) = await reading.poll()
            await clock.advance(100)
            await reading.send_back(message)
            await clock.advance(500)
            store(broker, RETRIES, b"again")
            assert [one.body for one in await reading.poll()] == [b"again"]

    async def test_one_that_another_consumer_made_is_found_at_the_next_look(
        self, broker: RetryingBroker
    ) -> None:
        clock = VirtualClock()
        async with consumer(broker, clock) as reading:
            await clock.advance(100)
            add_topic(broker, RETRIES, 1)
            store(broker, RETRIES, b"again")
            await clock.advance(10_000)
            assert [one.body for one in await reading.poll()] == [b"again"]

    async def test_that_there_is_none_is_nothing_to_warn_of_and_rarely_asked(
        self, broker: RetryingBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        clock, cluster = VirtualClock(), FakeCluster(broker)
        asked: list[str] = []
        real = cluster.route

        def route(request: pb.RouteRequest, _: Any) -> pb.RouteReply:
            asked.extend(request.topics)
            return real(request, _)

        cluster.route = route  # type: ignore[method-assign]
        reading = AsyncPullConsumer(
            "billing", "orders", clock=clock, connections=FakeConnections(cluster)
        )
        with caplog.at_level(logging.INFO):
            async with reading:
                await clock.advance(60_000)

        assert asked.count(RETRIES) <= 7
        assert [record.message for record in caplog.records] == [
            "queues assigned group=billing queues=1 generation=1"
        ]


# ------------------------------------------------------------ dead letters


def letter(number: int, died_ms: int) -> pb.DeadLetter:
    record = Record(topic="%DLQ%billing", body=b"%d" % number, queue_offset=number)
    return pb.DeadLetter(
        queue_offset=number,
        message_id=f"id-{number}",
        origin_topic="orders",
        origin_message_id="7F",
        reason="no",
        reconsume_times=17,
        died_ms=died_ms,
        record=encode_record(record),
    )


def two_brokers() -> list[RetryingBroker]:
    brokers = [RetryingBroker("a", "127.0.0.1:1"), RetryingBroker("b", "127.0.0.1:2")]
    for at, broker in enumerate(brokers):
        broker.letters = [letter(number, 100 * number + at) for number in range(3)]
    return brokers


def admin(*brokers: FakeBroker) -> AsyncAdmin:
    return AsyncAdmin(clock=VirtualClock(), connections=FakeConnections(FakeCluster(*brokers)))


class TestDeadLetters:
    """An admin lists, re-sends and purges them on all brokers."""

    async def test_all_brokers_are_asked_page_by_page_and_the_oldest_comes_first(self) -> None:
        async with admin(*two_brokers()) as managing:
            found = await managing.dead_letters("billing")

        assert [(one.broker, one.queue_offset) for one in found] == [
            *(("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2))
        ]
        first = found[0]
        assert first == DeadLetter(
            broker="a",
            queue_offset=0,
            message_id="id-0",
            origin_topic="orders",
            origin_message_id="7F",
            reason="no",
            reconsume_times=17,
            died_ms=0,
            message=first.message,
        )
        assert (first.message.body, first.message.topic) == (b"0", "%DLQ%billing")

    async def test_a_number_of_letters_and_a_broker_can_be_chosen(self) -> None:
        async with admin(*two_brokers()) as managing:
            assert len(await managing.dead_letters("billing", max_letters=1)) == 2
            found = await managing.dead_letters("billing", broker="b", from_offset=1)

        assert [(one.broker, one.queue_offset) for one in found] == [("b", 1), ("b", 2)]

    async def test_numbers_mean_nothing_while_several_brokers_have_letters(self) -> None:
        brokers = two_brokers()
        async with admin(*brokers) as managing:
            for asking in (
                managing.dead_letters("billing", from_offset=1),
                managing.resend_dead_letters("billing", [1]),
                managing.purge_dead_letters("billing", below=1),
            ):
                with pytest.raises(InvalidArgument, match="choose one with broker="):
                    await asking
            brokers[0].letters.clear()
            await managing.resend_dead_letters("billing", [1])
            await managing.purge_dead_letters("billing", below=1)

        assert [len(broker.resent) for broker in brokers] == [0, 1]
        assert [broker.purged for broker in brokers] == [[], [1]]

    async def test_each_letter_that_is_sent_again_has_its_outcome(
        self, broker: RetryingBroker
    ) -> None:
        broker.letters = [letter(0, 0)]
        async with admin(broker) as managing:
            good, bad = await managing.resend_dead_letters("billing", [0, 5], topic="bills")

        assert (good.topic, good.error, good.broker) == ("bills", None, "broker-a")
        assert isinstance(bad.error, MessageNotFound)

    async def test_many_are_sent_again_in_parts(self, broker: RetryingBroker) -> None:
        broker.letters = [letter(0, 0)]
        async with admin(broker) as managing:
            await managing.resend_dead_letters("billing", [*range(1_100), 3])

        assert [len(request.queue_offsets) for request in broker.resent] == [500, 500, 100]

    async def test_purging_counts_what_is_gone_on_all_brokers(self) -> None:
        brokers = two_brokers()
        async with admin(*brokers) as managing:
            assert await managing.purge_dead_letters("billing") == 6
            assert await managing.purge_dead_letters("billing", below=2, broker="a") == 2

        assert [broker.purged for broker in brokers] == [[0, 2], [0]]

    async def test_below_nothing_is_nothing(self, broker: RetryingBroker) -> None:
        broker.letters = [letter(0, 0)]
        async with admin(broker) as managing:
            assert await managing.purge_dead_letters("billing", below=0) == 0
            with pytest.raises(InvalidArgument):
                await managing.purge_dead_letters("billing", below=-1)

        assert broker.purged == []

    async def test_brokers_that_do_not_know_the_group_are_left_out_unless_none_does(self) -> None:
        brokers = two_brokers()
        brokers[0].known_groups.clear()
        async with admin(*brokers) as managing:
            assert {one.broker for one in await managing.dead_letters("billing")} == {"b"}
            brokers[1].known_groups.clear()
            with pytest.raises(GroupNotFound):
                await managing.dead_letters("billing")
            with pytest.raises(RouteNotFound):
                await managing.dead_letters("billing", broker="c")

    async def test_retry_intervals_travel_with_a_group(self, broker: RetryingBroker) -> None:
        async with admin(broker) as managing:
            made = await managing.create_group("billing", retry_intervals_ms=[10_000, 30_000])

        assert made.retry_intervals_ms == (10_000, 30_000)
        assert list(broker.groups["billing"].retry_intervals_ms) == [10_000, 30_000]


# ------------------------------------------------------------ the synchronous faces


@pytest.fixture
def served(broker: RetryingBroker) -> Iterator[str]:
    """The address of a cluster of BROKER in a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    serving = asyncio.run_coroutine_threadsafe(serve(FakeCluster(broker)), loop)
    carrier, port = serving.result()
    yield f"127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(carrier.stop(0), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_from_ordinary_threads(broker: RetryingBroker, served: str) -> None:
    store(broker, "orders", b"1")
    with PullConsumer("billing", "orders", served) as reading:
        (message,) = reading.poll(timeout_ms=5_000)
        assert reading.send_back(message, delay_level=-1, reason="no").dead
    with pytest.raises(ClientClosed):
        reading.send_back(message)

    broker.letters = [letter(0, 0)]
    with Admin(served) as managing:
        assert [one.reason for one in managing.dead_letters("billing")] == ["no"]
        assert [one.error for one in managing.resend_dead_letters("billing", [0])] == [None]
        assert managing.purge_dead_letters("billing") == 1


async def settle() -> None:
    for _ in range(200):
        await asyncio.sleep(0)
