"""Fetches with a filter: what they bring, what they step over, and what ends their wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from pocketmq.broker.messages import filtered_fetch
from pocketmq.broker.messages.filtered_fetch import SKIPPED_WAIT_MS
from pocketmq.broker.messages.filters import Mask, SqlChoice, TagChoice, choice_of
from pocketmq.proto.errors import InvalidFilter, OffsetOutOfRange, PocketMQError
from pocketmq.proto.errors_wire import from_wire
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.store.slices import Slices

from .fetching import TOPIC, WAIT_MS, Rig

pytestmark = pytest.mark.slow

TAG_A = pb.Filter(kind=pb.Filter.TAG, expression="a")
OVER_5 = pb.Filter(kind=pb.Filter.SQL, expression="n > 5")


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    await rig.stop()


def tagged(rig: Rig, tags: str) -> None:
    """Append a message for each of TAGS, whose body is its tag; "-" has none."""
    rig.append(
        *(tag.encode() for tag in tags),
        properties=[{} if tag == "-" else {"TAGS": tag} for tag in tags],
    )


def progress(reply: pb.FetchReply) -> tuple[int, int]:
    return reply.next_offset, reply.filtered_count


async def test_only_wanted_messages_come(rig: Rig) -> None:
    tagged(rig, "ab-ab")

    rig.wait(filter=TAG_A)

    reply = rig.replies[0]
    assert rig.bodies() == [b"a", b"a"]
    assert progress(reply) == (5, 3)
    assert (reply.min_offset, reply.max_offset) == (0, 5)


async def test_only_messages_for_which_the_expression_is_true_come(rig: Rig) -> None:
    numbers = [1, 7, 5, 6, 2]
    rig.append(*(b"%d" % n for n in numbers), properties=[{"n": str(n)} for n in numbers])

    rig.wait(filter=OVER_5, offset=1)

    assert progress(rig.replies[0]) == (5, 2)
    assert rig.bodies() == [b"7", b"6"]


async def test_messages_that_are_not_wanted_do_not_end_the_wait(rig: Rig) -> None:
    rig.wait(filter=TAG_A)
    tagged(rig, "bb")
    tagged(rig, "-")
    assert rig.replies == []

    tagged(rig, "ba")

    assert progress(rig.replies[0]) == (5, 4)
    assert rig.bodies() == [b"a"]


@pytest.mark.parametrize("is_there_before", [True, False])
async def test_a_fetch_that_skipped_all_tells_so_soon(rig: Rig, *, is_there_before: bool) -> None:
    if is_there_before:
        tagged(rig, "bb")
    rig.wait(filter=TAG_A)
    if not is_there_before:
        tagged(rig, "bb")
    assert rig.replies == []

    await rig.clock.advance(SKIPPED_WAIT_MS)

    assert progress(rig.answer()) == (2, 2)


async def test_a_fetch_that_skips_on_does_not_wait_longer(rig: Rig) -> None:
    rig.wait(filter=TAG_A)
    tagged(rig, "b")
    await rig.clock.advance(SKIPPED_WAIT_MS - 10)
    tagged(rig, "b")

    await rig.clock.advance(10)

    assert progress(rig.answer()) == (2, 2)


async def test_a_wait_that_is_shorter_stays_so(rig: Rig) -> None:
    tagged(rig, "b")
    rig.wait(filter=TAG_A, max_wait_ms=50)

    await rig.clock.advance(50)

    assert progress(rig.answer()) == (1, 1)


@pytest.mark.parametrize("tags", ["", "bbb"])
async def test_at_the_deadline_the_answer_says_how_far_it_has_looked(rig: Rig, tags: str) -> None:
    if tags:
        tagged(rig, tags)
    rig.wait(filter=TAG_A)

    await rig.clock.advance(WAIT_MS)

    reply = rig.answer()
    assert (reply.records, reply.error.name) == (b"", "")
    assert progress(reply) == (len(tags), len(tags))


async def test_without_a_wait_the_answer_comes_at_once(rig: Rig) -> None:
    tagged(rig, "bab")

    rig.fetch(filter=TAG_A)
    assert progress(rig.replies[0]) == (3, 2)
    assert rig.bodies() == [b"a"]

    rig.fetch(filter=TAG_A, offset=2)
    assert progress(rig.answer()) == (3, 1)


async def test_what_was_found_is_kept_until_there_is_enough(rig: Rig) -> None:
    rig.wait(filter=TAG_A, min_bytes=250)
    tagged(rig, "ab")
    tagged(rig, "ba")
    assert rig.replies == []

    tagged(rig, "ab")

    assert progress(rig.replies[0]) == (6, 3)
    assert rig.bodies() == [b"a"] * 3


async def test_what_was_found_comes_at_the_deadline(rig: Rig) -> None:
    rig.wait(filter=TAG_A, min_bytes=10_000)
    tagged(rig, "bab")

    await rig.clock.advance(WAIT_MS)

    assert progress(rig.replies[0]) == (3, 2)
    assert rig.bodies() == [b"a"]


async def test_a_fetch_keeps_little_in_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filtered_fetch, "HELD_BYTES_MAX", 200)
    rig.wait(filter=TAG_A, min_bytes=10_000)

    tagged(rig, "a")
    assert rig.replies == []
    tagged(rig, "a")

    assert rig.bodies() == [b"a", b"a"]


async def test_a_record_that_does_not_fit_in_comes_with_the_next_fetch(rig: Rig) -> None:
    rig.append(b"a" * 100, b"b", b"c" * 500, properties={"TAGS": "a"})

    rig.wait(filter=TAG_A, max_bytes=400, min_bytes=400)
    await asyncio.sleep(0)

    reply = rig.replies[0]
    assert rig.bodies() == [b"a" * 100, b"b"]
    assert progress(reply) == (2, 0)


async def test_a_record_larger_than_the_bound_comes_alone(rig: Rig) -> None:
    tagged(rig, "b")
    rig.append(b"x" * 500, properties={"TAGS": "a"})

    rig.wait(filter=TAG_A, max_bytes=100)

    assert rig.bodies() == [b"x" * 500]


async def test_as_many_come_as_were_asked_for(rig: Rig) -> None:
    tagged(rig, "babab")

    rig.wait(filter=TAG_A, max_messages=1)
    assert progress(rig.replies[0]) == (3, 2)
    assert rig.bodies() == [b"a"]

    rig.wait(filter=TAG_A, max_messages=1, offset=3)
    assert progress(rig.replies[0]) == (5, 1)
    assert rig.bodies() == [b"a"]


async def test_a_fetch_far_behind_looks_on_turn_by_turn(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice_of(OVER_5), "bytes_max", 150)
    rig.append(*[b"x"] * 20, properties={"n": "1"})
    rig.append(b"wanted", properties={"n": "6"})
    before = rig.clock.now_ms()

    rig.wait(filter=OVER_5)
    assert rig.replies == []
    turns = 0
    while not rig.replies:
        await asyncio.sleep(0)
        turns += 1

    assert turns > 10
    assert progress(rig.replies[0]) == (21, 20)
    assert rig.bodies() == [b"wanted"]
    assert rig.clock.now_ms() == before
    assert len(rig.purgatory) == 0


async def test_fetches_that_look_on_take_turns(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice_of(OVER_5), "bytes_max", 1)
    for queue, count in ((0, 40), (1, 2)):
        rig.append(*[b"x"] * count, queue=queue, properties={"n": "1"})
        rig.append(b"%d" % queue, queue=queue, properties={"n": "6"})

    rig.wait(filter=OVER_5, queue=0)
    rig.wait(filter=OVER_5, queue=1)
    for _ in range(60):
        await asyncio.sleep(0)

    assert [reply.next_offset for reply in rig.replies] == [3, 41]


#: A filter as costly as one may be, of which no message is wanted, and a value that it searches from end to end.
COSTLY = pb.Filter(
    kind=pb.Filter.SQL, expression=" OR ".join(f"p CONTAINS 'aaaaab{n:03d}a'" for n in range(250))
)
LONG_VALUE = {"p": "a" * 28_000}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Each look through an SQL filter: how many records it was at."""
    found: list[int] = []
    wanted = SqlChoice.wanted

    def counted(self: SqlChoice, seen: Slices) -> Mask:
        found.append(len(seen))
        return wanted(self, seen)

    monkeypatch.setattr(SqlChoice, "wanted", counted)
    return found


async def test_what_a_turn_looks_at_is_less_the_more_a_filter_does(
    rig: Rig, looks: list[int]
) -> None:
    rig.append(*[b"x"] * 8, properties=LONG_VALUE)

    rig.wait(filter=OVER_5)
    assert looks == [8]

    looks.clear()
    await asyncio.sleep(0)
    rig.wait(filter=COSTLY)
    assert looks == [1]
    for _ in range(8):
        await asyncio.sleep(0)
    assert looks == [1] * 8


def test_fewer_short_messages_are_looked_at_the_more_a_filter_does() -> None:
    little, much = choice_of(OVER_5), choice_of(COSTLY)

    assert little is not None
    assert much is not None
    assert little.records_max == 2_000
    assert much.records_max < 100


async def test_fetches_of_one_turn_look_at_no_more_than_one_may(rig: Rig, looks: list[int]) -> None:
    rig.append(*[b"x"] * 3, properties=LONG_VALUE)

    for _ in range(10):
        rig.wait(filter=COSTLY)
    for _ in range(10):
        rig.fetch(filter=COSTLY)
    assert looks == [1]
    assert rig.replies == []

    for turn in range(2, 20):
        await asyncio.sleep(0)
        assert len(looks) <= turn
    for _ in range(40):
        await asyncio.sleep(0)
    assert len(looks) == 10 * 3 + 10
    assert [reply.next_offset for reply in rig.replies] == [1] * 10


async def test_a_fetch_that_is_cancelled_looks_on_no_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice_of(OVER_5), "bytes_max", 1)
    rig.append(*[b"x"] * 9, properties={"n": "1"})
    waiting = rig.wait(filter=OVER_5, group="g")
    assert waiting is not None

    waiting.cancel()
    await rig.clock.advance(2 * WAIT_MS)

    assert rig.replies == []
    assert sum(one.count for one in rig.filters.consume_stats.of_group("g")) == 1


async def test_when_too_many_wait_the_answer_comes_at_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path, fetches_waiting_max=1)
    tagged(rig, "b")
    rig.wait(queue=1)

    rig.wait(filter=TAG_A)

    assert progress(rig.answer()) == (1, 1)
    await rig.stop()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"filter": pb.Filter(kind=pb.Filter.SQL, expression="n >")}, InvalidFilter),
        ({"filter": TAG_A, "offset": 9}, OffsetOutOfRange),
        ({"filter": TAG_A, "offset": 9, "queue": 1}, OffsetOutOfRange),
    ],
)
async def test_what_cannot_be_answered_is_told(
    rig: Rig, fields: dict[str, object], error: type[PocketMQError]
) -> None:
    tagged(rig, "a")

    rig.wait(**fields)

    assert isinstance(from_wire(rig.answer().error), error)


async def test_what_is_stepped_over_is_counted_once_a_group(rig: Rig) -> None:
    tagged(rig, "bbabb")

    for group in ("g", "g", "h", ""):
        rig.fetch(filter=TAG_A, group=group)
    rig.fetch(filter=TAG_A, group="g", offset=4)

    counts = rig.filters.consume_stats
    assert [one.count for one in counts.of_group("g")] == [4]
    assert [one.count for one in counts.of_group("h")] == [4]
    assert counts.of_group("") == []


async def test_a_filter_that_wants_every_message_is_none(rig: Rig) -> None:
    tagged(rig, "ab")

    rig.wait(filter=pb.Filter(kind=pb.Filter.TAG, expression="*"))

    assert progress(rig.replies[0]) == (2, 0)
    assert rig.bodies() == [b"a", b"b"]


tags = st.text("ab-", min_size=1, max_size=12)


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    appends=st.lists(tags, max_size=6),
    max_messages=st.integers(1, 5),
    max_bytes=st.integers(1, 600),
    min_bytes=st.integers(0, 700),
    records_max=st.integers(1, 4),
    wanted=st.sampled_from(["a", "b", "a||b"]),
)
def test_a_reader_that_follows_gets_exactly_the_wanted_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    appends: list[str],
    max_messages: int,
    max_bytes: int,
    min_bytes: int,
    records_max: int,
    wanted: str,
) -> None:
    async def follow() -> None:
        rig = Rig(tmp_path_factory.mktemp("store"))
        found: list[bytes] = []
        offset = stepped = 0
        for tags in [*appends, "ab"]:
            tagged(rig, tags)
            while offset < rig.store.queue_bounds(TOPIC, 0)[1]:
                rig.fetch(
                    filter=pb.Filter(kind=pb.Filter.TAG, expression=wanted),
                    offset=offset,
                    max_messages=max_messages,
                    max_bytes=max_bytes,
                    min_bytes=min_bytes,
                    max_wait_ms=WAIT_MS,
                )
                if not rig.replies:
                    await rig.clock.advance(WAIT_MS)
                reply = rig.replies[0]
                assert reply.next_offset > offset
                assert reply.records.count(b"\xda\xa3\x20\xa7") <= max_messages
                offset = reply.next_offset
                stepped += reply.filtered_count
                found += rig.bodies()
        await rig.stop()

        all_tags = "".join([*appends, "ab"])
        assert b"".join(found).decode() == "".join(tag for tag in all_tags if tag in wanted)
        assert stepped == len(all_tags) - len(found)

    monkeypatch.setattr(TagChoice, "records_max", records_max)
    asyncio.run(follow())
