"""Receives that do not want everything."""

from __future__ import annotations

from pocketmq.broker.messages.filters import choice_of
from pocketmq.broker.pop.deliveries import PopKey
from pocketmq.broker.pop.table import scan
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .popping import GROUP, TOPIC, Popping, bodies


def tagged(*tags: str) -> object:
    return choice_of(pb.Filter(kind=pb.Filter.TAG, expression=" || ".join(tags)))


async def test_only_what_is_wanted_comes_and_the_rest_is_finished(broker: Popping) -> None:
    colours = [{"TAGS": "red"}, {"TAGS": "blue"}, {"TAGS": "red"}, {"TAGS": "blue"}]
    broker.send(b"1", b"2", b"3", b"4", properties=colours)

    found = broker.pop(choice=tagged("red"))

    assert bodies(found) == [b"1", b"3"]
    broker.ack(*found)
    assert broker.pop() == []
    assert broker.committed() == 4


async def test_tags_of_one_hash_are_told_apart(broker: Popping) -> None:
    broker.send(b"1", b"2", properties=[{"TAGS": "Aa"}, {"TAGS": "BB"}])

    assert bodies(broker.pop(choice=tagged("BB"))) == [b"2"]


async def test_an_expression_looks_at_many_to_find_one(broker: Popping) -> None:
    choice = choice_of(pb.Filter(kind=pb.Filter.SQL, expression="n = 299"))
    broker.send(*[b"%d" % n for n in range(300)], properties=[{"n": str(n)} for n in range(300)])

    assert bodies(broker.pop(1, choice=choice)) == [b"299"]


async def test_one_receive_looks_at_little_for_a_costly_expression(broker: Popping) -> None:
    expression = " OR ".join(f"p CONTAINS 'aaaaab{n:03d}a'" for n in range(250))
    choice = choice_of(pb.Filter(kind=pb.Filter.SQL, expression=expression))
    assert choice is not None
    broker.send(*[b"x"] * 5, properties={"p": "a" * 28_000})

    scanned = scan(broker.store, PopKey(GROUP, TOPIC, 0), 0, 32, 1 << 20, choice)

    assert (scanned.found, scanned.next_offset) == ([], 1)


async def test_a_look_at_very_many_goes_on_in_later_turns(broker: Popping) -> None:
    choice = choice_of(pb.Filter(kind=pb.Filter.SQL, expression="n = 8999"))
    for first in range(0, 9_000, 3_000):
        numbers = range(first, first + 3_000)
        broker.send(*[b"-"] * 3_000, properties=[{"n": str(n)} for n in numbers])

    broker.wait(choice=choice)
    assert broker.answers == []
    await broker.clock.advance(1)

    (one,) = broker.answer().deliveries
    assert one.offset == 8_999
    broker.ack(one)
    assert broker.committed() == 9_000
