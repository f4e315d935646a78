"""Finding single messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.config import BrokerConfig
from pocketmq.broker.messages import lookup
from pocketmq.broker.messages.lookup import Lookups
from pocketmq.broker.topics import Topics
from pocketmq.proto.errors import InvalidArgument, Overloaded, TopicNotFound
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.message_id import offset_message_id
from pocketmq.proto.record import Record, decode_record, encode_record
from pocketmq.proto.record_run import walk
from pocketmq.store.format.state_tables import TopicConfig
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk
from pocketmq.store.state_files import StateFile

from ...runs import Hand, make_run, open_store

TOPIC = "T"


class Rig:
    """Look-ups over a small store."""

    def __init__(self, path: Path) -> None:
        self.clock = Hand()
        self.store: MessageStore = open_store(
            path, now_ms=self.clock, index_entries=2000, log_file_size_bytes=1 << 20
        )
        topics = Topics(StateFile(OsDisk(), str(path), "topics.json"), BrokerConfig(), self.clock)
        for name in (TOPIC, "Other"):
            topics.create(TopicConfig(name=name, read_queues=4, write_queues=4), update=False)
        self.lookups = Lookups(topics.get, self.store)

    def append(self, body: bytes, *, topic: str = TOPIC, **properties: str) -> int:
        """Store one message; return its log offset."""
        appended = self.store.append(make_run(topic, 0, [body], properties))
        return int(appended.log_offsets[0])

    def ask(self, **fields: object) -> pb.LookupReply:
        return asyncio.run(self.lookups.lookup(pb.LookupRequest(**fields)))  # type: ignore[arg-type]

    def find(self, **fields: object) -> list[bytes]:
        """Return the bodies found."""
        records = self.ask(**{"topic": TOPIC, **fields}).records
        return [decode_record(records, start).body for start in walk(records)[0].tolist()]

    def id_of(self, log_offset: int) -> str:
        return offset_message_id(self.store.host.address, self.store.host.port, log_offset)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.store.close()


def test_every_word_of_the_keys_and_the_unique_id_finds_a_message(rig: Rig) -> None:
    rig.append(b"a", KEYS="red green", UNIQ_KEY="ID-1")
    rig.append(b"b", KEYS="green", UNIQ_KEY="ID-2")

    assert rig.find(key="green") == [b"a", b"b"]
    assert rig.find(key="red") == [b"a"]
    assert rig.find(key="ID-2") == [b"b"]
    assert rig.find(key="red green") == []


def test_tags_find_a_message_and_are_no_key(rig: Rig) -> None:
    rig.append(b"a", TAGS="red")

    assert rig.find(tag="red") == [b"a"]
    assert rig.find(key="red") == rig.find(tag="green") == []


def test_two_keys_of_one_hash_are_told_apart(rig: Rig) -> None:
    rig.append(b"a", KEYS="AaAa")
    rig.append(b"b", KEYS="BBBB")  # the same String.hashCode

    assert rig.find(key="AaAa") == [b"a"]


async def test_a_key_is_found_behind_any_number_of_others_of_its_hash(rig: Rig) -> None:
    rig.append(b"wanted", KEYS="AaAaAaAaAaAaAaAa")
    others = ["".join(parts) for parts in product(("Aa", "BB"), repeat=8)]
    for _ in range(5):
        for key in others[1:]:
            rig.append(b"other", KEYS=key)
    question = pb.LookupRequest(topic=TOPIC, key="AaAaAaAaAaAaAaAa")

    looking = asyncio.create_task(rig.lookups.lookup(question))
    turns = 0
    while not looking.done():
        await asyncio.sleep(0)
        turns += 1

    assert [decode_record(looking.result().records).body] == [b"wanted"]
    assert not looking.result().more
    assert turns > 4, "others of the broker's work come between"


def test_another_topics_messages_are_not_found(rig: Rig) -> None:
    rig.append(b"a", topic="Other", KEYS="k")

    assert rig.find(key="k") == []


def test_an_id_of_a_place_in_a_body_finds_nothing(rig: Rig) -> None:
    """There may be what looks like a record of the topic, and reaches into the next message of another topic."""
    begin, body = rig.append(b"x" * 400), b"x" * 400
    data = rig.store.read_at(begin)
    assert data is not None
    inside = rig.store.max_log_offset + data.index(body)
    record = Record(topic=TOPIC, body=b"", queue_id=0, queue_offset=0, log_offset=inside,
                    store_host=rig.store.host)  # fmt: skip
    fake, reach = bytearray(encode_record(record)), 200
    fake[:4] = (len(fake) + reach).to_bytes(4)
    fake[-2:] = reach.to_bytes(2)
    rig.append(bytes(fake))
    rig.append(b"secret" * 100, topic="Other")
    assert b"secret" in (rig.store.read_at(inside) or b"")

    assert rig.find(message_id=rig.id_of(inside)) == []
    assert rig.find(message_id=rig.id_of(begin)) == [body]


def test_the_newest_are_kept_when_there_are_more_than_asked_for(rig: Rig) -> None:
    for number in range(5):
        rig.append(b"%d" % number, KEYS="k")

    reply = rig.ask(topic=TOPIC, key="k", max_messages=2)

    assert reply.more
    assert rig.find(key="k", max_messages=2) == [b"3", b"4"]
    assert not rig.ask(topic=TOPIC, key="k", max_messages=5).more


def test_an_answer_is_bounded_in_bytes_but_brings_one_record(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        rig.append(b"%d" % number * 1000, KEYS="k")

    monkeypatch.setattr(lookup, "_ANSWER_BYTES", 2500)
    assert rig.find(key="k") == [b"2" * 1000, b"3" * 1000]
    assert rig.ask(topic=TOPIC, key="k").more
    monkeypatch.setattr(lookup, "_ANSWER_BYTES", 1)
    assert rig.find(key="k") == [b"3" * 1000]


async def test_so_many_look_ups_go_on_at_a_time_others_wait_and_more_are_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.append(b"one", KEYS="k")
    begun, go_on = [], asyncio.Event()
    search = Lookups._search

    async def slow(*arguments: Any) -> pb.LookupReply:
        begun.append(1)
        await go_on.wait()
        return await search(*arguments)

    monkeypatch.setattr(Lookups, "_search", slow)
    monkeypatch.setattr(lookup, "WAITING_MAX", 20)
    asked = [
        asyncio.create_task(rig.lookups.lookup(pb.LookupRequest(topic=TOPIC, key="k")))
        for _ in range(lookup.LOOKUPS_MAX + 20)
    ]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(begun) == lookup.LOOKUPS_MAX
    asked.pop().cancel()
    await asyncio.sleep(0)
    asked.append(asyncio.create_task(rig.lookups.lookup(pb.LookupRequest(topic=TOPIC, key="k"))))
    await asyncio.sleep(0)

    with pytest.raises(Overloaded, match="lookups are running"):
        await rig.lookups.lookup(pb.LookupRequest(topic=TOPIC, key="k"))
    go_on.set()

    assert all(reply.records for reply in await asyncio.gather(*asked))


def test_times_bound_a_search(rig: Rig) -> None:
    begin_ms = rig.clock.now_ms
    for number in range(3):
        rig.append(b"%d" % number, KEYS="k")
        rig.clock.now_ms += 10_000

    assert rig.find(key="k", begin_ms=begin_ms + 9_000, end_ms=begin_ms + 11_000) == [b"1"]


def test_times_bound_a_search_to_the_millisecond(rig: Rig) -> None:
    rig.append(b"first", KEYS="k")  # The index counts whole seconds from here on.
    for number in range(3):
        rig.clock.now_ms += 900
        rig.append(b"%d" % number, KEYS="k")
    stored_ms = rig.clock.now_ms - 900

    assert rig.find(key="k", begin_ms=stored_ms, end_ms=stored_ms) == [b"1"]
    assert rig.find(key="k", begin_ms=stored_ms) == [b"1", b"2"]
    assert rig.find(key="k", end_ms=stored_ms - 1) == [b"first", b"0"]


def test_an_offset_id_names_one_message(rig: Rig) -> None:
    rig.append(b"a")
    message_id = rig.id_of(rig.append(b"b"))

    assert rig.find(topic="", message_id=message_id) == [b"b"]
    assert rig.find(message_id=message_id.lower()) == [b"b"]
    assert rig.find(topic="Other", message_id=message_id) == []
    assert rig.find(topic="", message_id=rig.id_of(10**9)) == []


def test_an_offset_id_of_another_broker_is_not_ours(rig: Rig) -> None:
    offset = rig.append(b"a")
    foreign = offset_message_id(bytes((10, 0, 0, 1)), 8081, offset)

    assert rig.find(topic="", message_id=foreign) == []


def test_a_unique_id_that_looks_like_an_offset_id_is_found(rig: Rig) -> None:
    rig.append(b"a", UNIQ_KEY="7F" * 16)

    assert rig.find(message_id="7F" * 16) == [b"a"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "by"),
        ({"key": ""}, "by"),
        ({"key": "k", "max_messages": -1}, "max_messages"),
        ({"key": "k", "begin_ms": -1}, "begin_ms"),
        ({"topic": "", "message_id": "no id"}, "message_id"),
    ],
    ids=str,
)
def test_a_bad_question_is_refused_by_field(
    rig: Rig, fields: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        rig.find(**fields)

    assert raised.value.details["field"] == field


def test_an_unknown_topic_is_named(rig: Rig) -> None:
    with pytest.raises(TopicNotFound):
        rig.find(topic="Nowhere", key="k")
