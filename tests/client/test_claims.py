"""A broken or lying server is a clear error: what replies claim is compared with what was asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pocketmq.client import Message
from pocketmq.client.claims import (
    check_advances,
    check_assigned,
    check_bounds,
    check_commit,
    check_fetched,
    check_leases,
    check_members,
    check_places,
    check_produced,
    check_route,
)
from pocketmq.client.received_message import FetchedRun
from pocketmq.client.routes import Routes
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import BadReply, PocketMQError
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.record import Record, encode_record

from .fake_cluster import FakeCluster
from .producing import producer
from .test_routes import session

RUN = pb.ProduceRun(topic="A", queue=0, records=b"x" * 300, sizes=[100, 100, 100])


def route(read: int, write: int, topic: str = "A") -> pb.RouteReply:
    queues = [pb.QueueData(broker_name="b", read_queues=read, write_queues=write, permission=6)]
    return pb.RouteReply(routes=[pb.TopicRoute(topic=topic, queues=queues)])


def bounds(least: int, end: int, at: int = 0, queue: int = 0) -> pb.QueueOffsets:
    return pb.QueueOffsets(
        topic="A", queue=queue, min_offset=least, max_offset=end, offset_at_time=at
    )


ASKED = [pb.QueueId(topic="A", queue=0)]
LEASES = [pb.QueueLease(topic="A", queue=0)]


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (lambda: check_route("A", route(2**31 - 1, 4), "s"), "2147483647 queues"),
        (lambda: check_route("A", route(4, -1), "s"), "queues of topic"),
        (lambda: check_route("A", route(4, 4, "B"), "s"), "route of 'B'"),
        (lambda: check_route("A", pb.RouteReply(routes=[pb.TopicRoute()] * 2), "s"), "2 routes"),
        (lambda: check_produced(RUN, pb.ProduceReply(log_offsets=[1, 2]), "s"), "2 log offsets"),
        (lambda: check_produced(RUN, pb.ProduceReply(queue_offsets=[1] * 4), "s"), "4 queue"),
        (lambda: check_produced(RUN, pb.ProduceReply(repeated_count=4), "s"), "4 duplicates"),
        (
            lambda: check_produced(RUN, pb.ProduceReply(first_queue_offset=2**63 - 1), "s"),
            "offsets 9223372036854775807",
        ),
        (lambda: check_bounds(ASKED, [], "s"), "0 queues, 1"),
        (lambda: check_bounds(ASKED, [bounds(5, 4)], "s"), "from 5 to 4"),
        (lambda: check_bounds(ASKED, [bounds(0, 4, 9)], "s"), "at 9"),
        (lambda: check_places(ASKED, [bounds(0, 1, queue=3)], "s"), "queue 3 of 'A', not 0"),
        (lambda: check_leases(LEASES, pb.LeaseReply(queues=LEASES), "s"), "leases of 0 ms"),
        (lambda: check_leases(LEASES, pb.LeaseReply(lease_ms=2**30), "s"), "0 queues, 1"),
        (lambda: check_members(pb.Members(generation=-1), "s"), "generation -1"),
        (
            lambda: check_assigned(pb.Assigned(queues=[pb.HeldQueue(topic="A", queue=2**30)]), "s"),
            "queue 1073741824",
        ),
        (lambda: check_commit([2], pb.AtomicCommitReply(), "s"), "offsets of"),
        (lambda: check_advances(7, 7, "s"), "begins at 7"),
    ],
)
def test_what_does_not_fit_is_refused_and_names_the_server(
    check: Callable[[], None], said: str
) -> None:
    with pytest.raises(BadReply, match=f"^the reply of s does not match the request: .*{said}"):
        check()


def test_what_fits_is_taken() -> None:
    check_route("A", route(8, 4), "s")
    check_route("A", pb.RouteReply(), "s")
    check_produced(RUN, pb.ProduceReply(first_queue_offset=7, first_log_offset=900), "s")
    check_produced(RUN, pb.ProduceReply(queue_offsets=[1, 2, 3], repeated_count=3), "s")
    check_bounds(ASKED, [bounds(2, 9, 4)], "s")
    check_leases(LEASES, pb.LeaseReply(queues=LEASES, lease_ms=10_000), "s")
    place = pb.AtomicPlace(queue_offsets=[1], log_offsets=[9])
    check_commit([1], pb.AtomicCommitReply(places=[place]), "s")
    check_advances(7, 8, "s")


def fetched(*offsets: int, topic: str = "A", queue: int = 0) -> FetchedRun:
    records = b"".join(
        encode_record(Record(topic=topic, queue_id=queue, queue_offset=one, body=b"x"))
        for one in offsets
    )
    return FetchedRun("b", records)


@pytest.mark.parametrize(
    ("run", "reply"),
    [
        (fetched(4, 5), pb.FetchReply(next_offset=5, max_offset=9)),
        (fetched(5, 4), pb.FetchReply(next_offset=6, max_offset=9)),
        (fetched(4, queue=1), pb.FetchReply(next_offset=5, max_offset=9)),
        (fetched(4, topic="B"), pb.FetchReply(next_offset=5, max_offset=9)),
        (None, pb.FetchReply(next_offset=10, max_offset=9)),
        (None, pb.FetchReply(next_offset=-1, max_offset=9)),
    ],
    ids=["beyond", "falling", "other queue", "other topic", "beyond the end", "negative"],
)
def test_messages_that_were_not_asked_for_are_refused(
    run: FetchedRun | None, reply: pb.FetchReply
) -> None:
    request = pb.FetchRequest(topic="A", queue=0, offset=4)
    check_fetched(request, pb.FetchReply(next_offset=6, max_offset=9), fetched(4, 5), "s")

    with pytest.raises(BadReply):
        check_fetched(request, reply, run, "s")


async def test_a_name_server_that_announces_billions_of_queues_is_refused_at_once() -> None:
    cluster = FakeCluster.of_one("orders")
    routes: Routes = session(cluster, VirtualClock()).routes
    cluster.route = lambda request, _: route(2**31 - 1, 2**31 - 1, "orders")  # type: ignore[method-assign]

    with pytest.raises(BadReply, match="2147483647 queues of topic 'orders'"):
        await routes.find("orders")


async def test_a_wrong_acknowledgement_fails_the_send_and_not_the_producer() -> None:
    cluster = FakeCluster.of_one("orders", queues=1)
    right = cluster.broker.produce

    def lie(run: pb.ProduceRun) -> pb.ProduceReply:
        reply = right(run)
        reply.queue_offsets.extend([1, 2, 3])
        return reply

    async with producer(cluster, retries=0) as sending:
        cluster.broker.produce = lie  # type: ignore[method-assign]
        with pytest.raises(PocketMQError) as caught:
            await sending.send(Message("orders", b"one"))
        cluster.broker.produce = right  # type: ignore[method-assign]
        assert (await sending.send(Message("orders", b"two"))).queue_offset >= 1
    assert "3 queue offsets for a batch of 1 messages" in str(caught.value) + str(
        caught.value.__cause__
    )
