"""What our own clients hear at the port of a follower."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.commit_texts import CommitText, commit_text_table
from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.offsets import Offsets
from pocketmq.broker.ports.follower_port import FollowerReads, follower_methods
from pocketmq.broker.ports.relays import KnownMaster, Relays
from pocketmq.broker.replication.follower_view import FollowerTables, FollowerView
from pocketmq.client.connections import BROKER, GrpcConnections
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import MasterFenced
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from pocketmq.proto.rpc import MethodTable, service, unary
from pocketmq.proto.rpc.channel import Http2Channel
from pocketmq.proto.topics import DEAD_LETTERS_GROUP
from pocketmq.store.format.state_tables import GroupConfig, TopicConfig
from pocketmq.store.state_files import StateFile

from ...runs import make_run, open_store
from .following import Follower, followed

MASTER = KnownMaster("10.0.0.2:8081", 7)


@asynccontextmanager
async def asked(**bounds: Any) -> AsyncIterator[tuple[Follower, GrpcConnections]]:
    async with followed(**bounds) as (follower, _):
        follower.master = MASTER
        connections = GrpcConnections()
        try:
            yield follower, connections
        finally:
            await connections.close()


def names_the_master(error: MasterFenced) -> bool:
    return error.details == {"broker": "orders", "master": "10.0.0.2:8081", "epoch": "7"}


async def test_a_question_is_told_where_the_master_is() -> None:
    async with asked() as (follower, connections):
        with pytest.raises(
            MasterFenced, match=r"master of epoch 7 is at 10\.0\.0\.2:8081"
        ) as fenced:
            await connections.to(follower.address).call(
                BROKER + "CommitOffsets", pb.CommitOffsetsRequest(), pb.CommitOffsetsReply, 1_000
            )
        assert names_the_master(fenced.value)


async def test_runs_and_fetches_are_told_each() -> None:
    async with asked() as (follower, connections):
        connection = connections.to(follower.address)
        answers = await asyncio.gather(
            *(connection.produce(pb.ProduceRun(topic="t"), 1_000) for _ in range(3)),
            *(connection.fetch(pb.FetchRequest(topic="t"), 1_000) for _ in range(3)),
            return_exceptions=True,
        )

        assert [type(answer) for answer in answers] == [MasterFenced] * 6
        assert all(names_the_master(answer) for answer in answers[:3])  # type: ignore[arg-type]
        assert all(answer.details["master"] for answer in answers)  # type: ignore[union-attr]


async def test_a_run_that_asks_for_no_answer_is_refused_all_the_same() -> None:
    async with asked() as (follower, connections):
        heard: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        await connections.to(follower.address).post(
            pb.ProduceRun(topic="t", no_reply=True), 1_000, heard.set_result
        )

        assert isinstance(await heard, MasterFenced)


async def test_a_member_and_a_listener_are_told_by_the_end_of_their_streams() -> None:
    async with asked() as (follower, connections):
        connection = connections.to(follower.address)
        talk = connection.converse(BROKER + "JoinGroup", pb.MemberRequest, pb.MemberEvent)
        await talk.send(pb.MemberRequest(join=pb.Join(group="g")))

        with pytest.raises(MasterFenced) as fenced:
            await talk.receive()
        assert names_the_master(fenced.value)
        checks = connection.listen(pb.TransactionListener(group="g"))
        with pytest.raises(MasterFenced):
            await anext(aiter(checks))


async def test_amid_an_election_all_are_answered_once_the_master_is_known() -> None:
    async with asked() as (follower, connections):
        follower.master = None
        connection = connections.to(follower.address)
        waiting = [
            asyncio.ensure_future(connection.produce(pb.ProduceRun(topic="t"), 3_000)),
            asyncio.ensure_future(
                connection.call(
                    BROKER + "GroupOffsets",
                    pb.GroupOffsetsRequest(),
                    pb.GroupOffsetsReply,
                    3_000,
                )
            ),
        ]
        await asyncio.sleep(0.2)
        assert not any(one.done() for one in waiting)

        follower.master = MASTER

        for answer in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(answer, MasterFenced)
            assert names_the_master(answer)


async def test_without_a_master_the_answer_names_none() -> None:
    async with asked(wait_s=0.1) as (follower, connections):
        follower.master = None

        with pytest.raises(MasterFenced, match="no master is known") as fenced:
            await connections.to(follower.address).produce(pb.ProduceRun(topic="t"), 3_000)
        assert fenced.value.details == {"broker": "orders"}


async def test_every_method_of_a_broker_is_there() -> None:
    relays = Relays("orders", lambda: None, Http2Channel)

    table = follower_methods(relays)

    for module, name in ((pb, "Broker"), (v2, "MessagingService")):
        described = module.DESCRIPTOR.services_by_name[name]
        for method in described.methods:
            found = table[f"/{described.full_name}/{method.name}"]
            assert found.request_type.DESCRIPTOR is method.input_type
            assert found.reply_type.DESCRIPTOR is method.output_type
    assert "opencensus.proto.agent.trace.v1.TraceService" in table.services()


async def test_what_a_follower_serves_itself_is_not_refused() -> None:
    entry = unary(pb.BrokerStatusRequest, pb.BrokerStatusReply, lambda request, call: None)  # type: ignore[arg-type]
    own: MethodTable = service("pocketmq.v1.Broker", {"Status": entry})

    table = follower_methods(Relays("orders", lambda: None, Http2Channel), own)

    assert table[BROKER + "Status"].handler is entry.handler


# ---------------------------------------------------------------- reads


class Reading:
    """A follower's store in FOLDER, and what is read of it there."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(folder)
        self.topics = {"A": TopicConfig(name="A", read_queues=1, write_queues=1)}
        self.offsets = Offsets(
            StateFile(self.store.disk, self.store.config.path, "consumerOffset.json"), lambda: 0
        )
        self.texts = commit_text_table()
        self.groups: dict[str, GroupConfig] = {}
        self.epoch = self.told_epoch = 3
        self.is_current = True
        self.clock = VirtualClock()
        self.reads = FollowerReads(BrokerConfig(), self.view, self.clock)

    def view(self) -> FollowerView:
        tables = FollowerTables(self.topics, self.texts, self.offsets, self.told_epoch, self.groups)
        return FollowerView(self.store, tables, self.epoch, self.is_current)

    def put(self, *bodies: bytes, tag: str = "") -> list[int]:
        """Append BODIES, which are not confirmed, to queue 0 of A; return where each ends in the log."""
        return [
            self.store.append(make_run("A", 0, [body], {"TAGS": tag} if tag else {})).end_offset
            for body in bodies
        ]

    async def fetch(self, offset: int = 0, **request: Any) -> pb.FetchReply | None:
        fetch = pb.FetchRequest(topic="A", offset=offset, from_any=True, **request)
        assert self.reads.serves(fetch)
        return await self.reads.fetch(fetch)

    async def lookup(self, **request: Any) -> pb.LookupReply | None:
        asked = pb.LookupRequest(topic="A", from_any=True, **request)
        assert self.reads.serves(asked)
        return await self.reads.lookup(asked)

    def group_offsets(
        self, topic: str = "A", group: str = "G", **request: Any
    ) -> pb.GroupOffsetsReply | None:
        asked = pb.GroupOffsetsRequest(
            group=group, queues=[pb.QueueId(topic=topic, queue=0)], from_any=True, **request
        )
        assert self.reads.serves(asked)
        return self.reads.group_offsets(asked)


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Reading]:
    made = Reading(tmp_path)
    yield made
    made.reads.stop()
    made.store.close()


async def test_a_follower_hands_out_what_is_confirmed_and_waits_for_more(reading: Reading) -> None:
    ends = reading.put(b"1", b"2")
    reading.store.confirm(ends[0])

    reply = await reading.fetch(min_bytes=1, max_wait_ms=5_000)
    assert reply is not None
    assert (reply.next_offset, reply.max_offset) == (1, 1)

    waiting = asyncio.create_task(reading.fetch(1, min_bytes=1, max_wait_ms=60_000))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    reading.store.confirm(ends[1])
    reply = await waiting
    assert reply is not None
    assert (reply.next_offset, len(reply.records) > 0) == (2, True)


async def test_a_follower_waits_for_what_its_master_has_handed_out_already(
    reading: Reading,
) -> None:
    ends = reading.put(b"1", b"2", b"3")
    reading.store.confirm(ends[0])
    waiting = asyncio.create_task(reading.fetch(2, min_bytes=1, max_wait_ms=60_000))
    await asyncio.sleep(0.1)
    assert not waiting.done()

    reading.store.confirm(ends[2])

    reply = await waiting
    assert reply is not None
    assert (reply.next_offset, len(reply.records) > 0) == (3, True)


async def test_what_a_follower_lacks_it_refuses_unless_the_master_has_nothing_more(
    reading: Reading,
) -> None:
    ends = reading.put(b"1")
    reading.store.confirm(ends[0])
    assert await reading.fetch(7) is None

    reading.is_current = False

    assert await reading.fetch(1, min_bytes=1, max_wait_ms=60_000) is None
    assert await reading.fetch(0) is not None, "what is confirmed stays so"


async def test_a_queue_that_a_follower_does_not_know_it_refuses(reading: Reading) -> None:
    reading.store.confirm(reading.put(b"1")[0])
    reading.topics["A"] = TopicConfig(name="A", read_queues=1, write_queues=1, permission=2)
    assert await reading.fetch() is None

    del reading.topics["A"]
    assert await reading.fetch() is None


async def test_a_group_that_is_switched_off_it_refuses(reading: Reading) -> None:
    reading.store.confirm(reading.put(b"1")[0])
    reading.groups["off"] = GroupConfig(name="off", consume_enable=False)
    reading.groups["on"] = GroupConfig(name="on")

    assert await reading.fetch(group="off") is None
    assert await reading.fetch(group="on") is not None


async def test_what_is_damaged_at_a_follower_it_refuses_since_the_master_may_have_it(
    reading: Reading, tmp_path: Path
) -> None:
    first, second = reading.put(b"one", b"two")
    reading.store.confirm(second)
    path = tmp_path / "commitlog" / f"{0:020}"
    at = path.read_bytes().index(b"two", first)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"2..")

    assert await reading.fetch(1, check_crcs=True) is None
    reply = await reading.fetch(0, max_messages=1, check_crcs=True)
    assert reply is not None
    assert reply.next_offset == 1


async def test_a_follower_filters_and_leaves_the_count_to_its_master(reading: Reading) -> None:
    wanted = pb.Filter(kind=pb.Filter.TAG, expression="red")
    ends = reading.put(b"1", tag="red") + reading.put(b"2", tag="blue")
    reading.store.confirm(ends[-1])

    reply = await reading.fetch(filter=wanted)

    assert reply is not None
    assert (reply.next_offset, reply.filtered_count) == (2, 1)
    assert b"red" in reply.records
    assert b"blue" not in reply.records
    assert await reading.fetch(filter=wanted, group="G") == reply
    assert len(reading.texts) == 0

    waiting = asyncio.create_task(reading.fetch(2, filter=wanted, min_bytes=1, max_wait_ms=60_000))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    reading.store.confirm(reading.put(b"3", tag="blue")[0])
    reply = await waiting
    assert reply is not None
    assert (reply.next_offset, reply.filtered_count, reply.records) == (3, 1, b"")


async def test_a_follower_finds_what_is_confirmed_and_refuses_where_it_finds_nothing(
    reading: Reading,
) -> None:
    ends = [
        reading.store.append(make_run("A", 0, [body], {"KEYS": "k"})).end_offset
        for body in (b"one", b"two")
    ]
    reading.store.confirm(ends[0])

    found = await reading.lookup(key="k")
    assert found is not None
    assert b"one" in found.records
    assert b"two" not in found.records
    assert await reading.lookup(key="other") is None
    assert await reading.lookup(key="") is None, "the master says what is wrong with it"
    reading.is_current = False
    assert await reading.lookup(key="k") is None
    reading.is_current = True
    del reading.topics["A"]
    assert await reading.lookup(key="k") is None


async def test_a_follower_with_a_damaged_message_refuses_look_ups(
    reading: Reading, tmp_path: Path
) -> None:
    for body in (b"one", b"two"):
        end = reading.store.append(make_run("A", 0, [body], {"KEYS": "k"})).end_offset
    reading.store.confirm(end)
    path = tmp_path / "commitlog" / f"{0:020}"
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(b"two"))
        file.write(b"2..")

    assert await reading.lookup(key="k") is None


async def test_offsets_of_groups_come_with_bounds_of_the_same_moment(reading: Reading) -> None:
    ends = reading.put(b"1", b"2", b"3")
    reading.store.confirm(ends[1])
    reading.offsets.commit("A", "G", 0, 1)
    reading.texts.put("", ("G", "A", 0), CommitText(1, "half"))

    reply = reading.group_offsets(with_times=True)

    assert reply is not None
    assert reply.follows
    (one,), (bounds,) = reply.offsets, reply.bounds
    assert (one.offset, one.metadata, bounds.min_offset, bounds.max_offset) == (1, "half", 0, 2)
    assert one.unread_store_time_ms > 0
    assert one.unread_bytes == ends[1] - ends[0]


async def test_a_follower_tells_which_dead_letters_were_purged(reading: Reading) -> None:
    topic = "%DLQ%G"
    reading.topics[topic] = TopicConfig(name=topic, read_queues=1, write_queues=1)
    ends = [reading.store.append(make_run(topic, 0, [b"x"])).end_offset for _ in range(3)]
    reading.store.confirm(ends[-1])
    reading.offsets.commit(topic, "G", 0, 0)
    reading.offsets.commit(topic, "Other", 0, 0)
    reading.offsets.commit(topic, DEAD_LETTERS_GROUP, 0, 2)

    replies = [reading.group_offsets(topic, group, with_times=True) for group in ("G", "Other")]

    told = [
        (one.purged_below, one.unread_bytes) for reply in replies if reply for one in reply.offsets
    ]
    assert told == [(2, ends[2] - ends[1]), (0, ends[2])]


async def test_offsets_of_which_a_follower_may_lack_some_it_refuses(reading: Reading) -> None:
    assert reading.group_offsets() is not None
    reading.is_current = False
    assert reading.group_offsets() is None
    reading.is_current, reading.told_epoch = True, 2
    assert reading.group_offsets() is None, "of an earlier master"
    reading.told_epoch = 3
    del reading.topics["A"]
    assert reading.group_offsets() is None


def test_what_a_follower_does_not_read_for_others(reading: Reading) -> None:
    closed = FollowerReads(BrokerConfig(), lambda: None, reading.clock)
    any_ = pb.FetchRequest(topic="A", from_any=True)
    queues = [pb.QueueId(topic="A")]

    assert reading.reads.serves(any_)
    assert not closed.serves(any_)
    assert not reading.reads.serves(pb.FetchRequest(topic="A"))
    assert not reading.reads.serves(pb.ProduceRun(topic="A"))
    assert not reading.reads.serves(pb.GroupOffsetsRequest(group="G", queues=queues))
    assert not reading.reads.serves(pb.GroupOffsetsRequest(group="G", from_any=True))
    assert not reading.reads.serves(
        pb.GroupOffsetsRequest(group="G", queues=queues, from_any=True, with_lent=True)
    )
