"""What calls may take of a server: time, bytes that are half sent, answers nobody reads. On a clock that stands."""

from __future__ import annotations

from typing import Any

import pytest

from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.rpc import LATER, Call, Limits, MethodTable, Stream, bidi, service, unary
from pocketmq.proto.rpc.messages import with_prefix

from .talk import Server

RUN, REPLY = pb.ProduceRun, pb.ProduceReply
RESOURCE_EXHAUSTED, DEADLINE_EXCEEDED = "8", "4"
MIB = 1024 * 1024


class Ear:
    """A receiver that answers each run with so many bytes, and notes its end."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.runs = 0

    def on_message(self, message: pb.ProduceRun) -> None:
        self.runs += 1
        self.stream.send(REPLY(store_host="x" * message.queue))

    def on_end(self) -> None:
        self.stream.finish()

    def on_close(self) -> None:
        """Nothing is held."""


class Methods:
    """One unary method, that answers with so many bytes or later, and one talk."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.ears: list[Ear] = []

    def table(self) -> MethodTable:
        return service(
            "t.T", {"Ask": unary(RUN, REPLY, self.ask), "Talk": bidi(RUN, REPLY, self.talk)}
        )

    def ask(self, run: pb.ProduceRun, call: Call) -> Any:
        self.calls.append(call)
        return LATER if run.topic == "later" else REPLY(store_host="x" * run.queue)

    def talk(self, stream: Stream) -> Ear:
        self.ears.append(Ear(stream))
        return self.ears[-1]


@pytest.fixture
def methods() -> Methods:
    return Methods()


def server(methods: Methods, **limits: int) -> Server:
    return Server(methods.table(), Limits(**limits))


LATER_RUN = RUN(topic="later").SerializeToString()
BIG_RUN = with_prefix(RUN(records=bytes(MIB)).SerializeToString())


async def test_a_call_that_is_not_answered_in_its_time_ends_and_its_handler_hears(
    methods: Methods,
) -> None:
    world = server(methods)
    talk = world.talk()
    late = talk.ask("/t.T/Ask", LATER_RUN, ("grpc-timeout", "300m"))
    patient = talk.ask("/t.T/Ask", LATER_RUN)
    heard: list[str] = []
    methods.calls[0].on_cancel(lambda: heard.append("late"))
    assert methods.calls[0].deadline_ms == 300
    assert methods.calls[1].deadline_ms is None

    world.pass_time(200)
    assert (talk.status(late), heard) == ("", [])
    world.pass_time(200)
    assert (talk.status(late), heard) == (DEADLINE_EXCEEDED, ["late"])
    methods.calls[0].reply(REPLY(run_id=1))
    world.pass_time(86_400_000)
    assert talk.status(patient) == ""
    methods.calls[1].reply(REPLY(run_id=1))
    assert talk.status(patient) == "0"
    assert talk.open_calls == 0


async def test_a_request_is_whole_in_its_time_or_ends(methods: Methods) -> None:
    world = server(methods, request_ms=5_000)
    talk = world.talk()
    slow = talk.begin("/t.T/Ask")
    half = talk.begin("/t.T/Talk")
    idle = talk.begin("/t.T/Talk")
    talk.send(half, with_prefix(RUN(run_id=1).SerializeToString()) + BIG_RUN[:9])

    world.pass_time(4_000)
    talk.send(slow, BIG_RUN[:20])
    world.pass_time(2_000)

    assert talk.status(slow) == DEADLINE_EXCEEDED
    assert talk.status(half) == DEADLINE_EXCEEDED
    assert talk.status(idle) == ""
    assert methods.ears[0].runs == 1
    assert talk.open_calls == 1


async def test_what_is_half_sent_is_bounded_on_a_connection(methods: Methods) -> None:
    world = server(methods, half_sent_bytes_connection=2 * MIB + 1_000)
    talk, other = world.talk(), world.talk()
    streams = [talk.begin("/t.T/Ask") for _ in range(3)]
    for stream_id in streams:
        talk.send(stream_id, BIG_RUN[:-1])
    talk.send(streams[0], BIG_RUN[-1:], ends=True)
    talk.send(streams[1], BIG_RUN[-1:], ends=True)

    assert [talk.status(stream_id) for stream_id in streams] == ["0", "0", RESOURCE_EXHAUSTED]
    assert "incomplete or unread" in talk.ends[streams[2]]["grpc-message"]
    assert world.served.half_sent == 0
    assert other.status(other.ask("/t.T/Ask", b"")) == "0"


async def test_what_is_half_sent_longest_gives_way_to_who_comes(methods: Methods) -> None:
    world = server(methods, half_sent_bytes_server=4 * MIB)
    talks = [world.talk() for _ in range(3)]
    streams = [(talk, talk.begin("/t.T/Talk")) for talk in talks]
    for talk, stream_id in streams:
        talk.send(stream_id, BIG_RUN[:-1])
        world.pass_time(1_000)
    newcomer = world.talk()
    stream_id = newcomer.begin("/t.T/Ask")
    newcomer.send(stream_id, BIG_RUN, ends=True)
    whole = newcomer.status(stream_id)

    assert whole == "0"
    assert [talk.status(stream_id) for talk, stream_id in streams] == [RESOURCE_EXHAUSTED, "", ""]
    assert "send it without pauses" in talks[0].ends[streams[0][1]]["grpc-message"]
    for talk in talks:
        talk.conversation.lost()
    assert world.served.half_sent == 0


async def test_many_connections_of_one_host_are_one_burden(methods: Methods) -> None:
    world = server(methods, half_sent_bytes_server=2 * MIB)
    crowd = [world.talk(peer=f"10.0.0.1:{port}") for port in range(1, 31)]
    halves = [(talk, talk.begin("/t.T/Ask")) for talk in crowd]
    alone = world.talk(peer="10.0.0.2:1")
    slow = alone.begin("/t.T/Ask")
    world.pass_time(1_000)  # The crowd was no sooner there.
    alone.send(slow, BIG_RUN[: MIB // 8])
    for talk, stream_id in halves:
        talk.send(stream_id, BIG_RUN[: MIB // 14])

    assert alone.status(slow) == ""
    ended = [talk for talk, stream_id in halves if talk.status(stream_id) == RESOURCE_EXHAUSTED]
    assert 2 <= len(ended) <= 10
    alone.send(slow, BIG_RUN[MIB // 8 :], ends=True)
    assert alone.status(slow) == "0"


async def test_heads_without_bodies_count(methods: Methods) -> None:
    world = server(methods, half_sent_bytes_server=MIB)
    talks = [world.talk() for _ in range(10)]
    for talk in talks:
        for _ in range(200):
            talk.begin("/t.T/Ask")
    assert sum(talk.open_calls for talk in talks) <= 512


async def test_requests_that_wait_for_their_reader_give_way_last(methods: Methods) -> None:
    world = server(methods, half_sent_bytes_server=4 * MIB, queue_bytes=1_000)
    busy, slow = world.talk(), world.talk()
    waiting = busy.begin("/t.T/Talk")
    # Its answers are not read, so that the next request waits, and is whole.
    busy.send(waiting, with_prefix(RUN(queue=MIB).SerializeToString()))
    busy.send(waiting, BIG_RUN + BIG_RUN)
    half = slow.begin("/t.T/Ask")
    slow.send(half, BIG_RUN[: MIB // 2])
    world.pass_time(5_000)
    other = world.talk()
    stream_id = other.begin("/t.T/Ask")
    other.send(stream_id, with_prefix(bytes(2 * MIB))[: -MIB // 4])

    assert busy.status(waiting) == ""
    assert slow.status(half) == RESOURCE_EXHAUSTED
    assert other.status(stream_id) == ""


async def test_answers_that_nobody_reads_are_bounded_on_a_connection(methods: Methods) -> None:
    world = server(methods, connection_queue_bytes_max=3 * MIB)
    talk = world.talk()
    run = RUN(queue=MIB).SerializeToString()
    streams = [talk.ask("/t.T/Ask", run) for _ in range(8)]

    failed = [stream_id for stream_id in streams if talk.status(stream_id) == RESOURCE_EXHAUSTED]
    assert failed == streams[3:]
    assert talk.queued <= 3 * MIB + 100

    stream_id = talk.begin("/t.T/Talk")
    talk.send(stream_id, with_prefix(run))
    assert talk.status(stream_id) == ""
    assert methods.ears[0].runs == 0  # It waits until the answers are taken.
    assert talk.queued <= 3 * MIB + 100


async def test_answers_that_nobody_reads_give_way_to_those_that_are_read(methods: Methods) -> None:
    world = server(methods, queue_bytes_server=8 * MIB)
    run = RUN(queue=MIB).SerializeToString()
    hostile = [world.talk() for _ in range(10)]
    asked = []
    for talk in hostile:
        asked += [(talk, talk.ask("/t.T/Ask", run)) for _ in range(2)]
        world.pass_time(100)
    assert sum(talk.queued for talk in hostile) <= 8 * MIB
    assert world.served.answers.held <= 8 * MIB

    honest = world.talk()
    honest.open_windows()
    assert honest.status(honest.ask("/t.T/Ask", RUN(queue=5 * MIB).SerializeToString())) == "0"
    for talk in hostile:
        talk.open_windows()
    ends = [talk.status(stream_id) for talk, stream_id in asked]
    assert set(ends) == {"0", RESOURCE_EXHAUSTED}
    assert "read faster" in next(
        end["grpc-message"]
        for talk in hostile
        for end in talk.ends.values()
        if "grpc-message" in end
    )
    for talk in [*hostile, honest]:
        talk.conversation.lost()
    assert world.served.answers.held == 0


async def test_a_stream_that_is_not_read_waits_where_little_is_free(methods: Methods) -> None:
    world = server(methods, queue_bytes_server=8 * MIB)
    talk = world.talk()
    run = with_prefix(RUN(queue=MIB).SerializeToString())
    streams = [talk.begin("/t.T/Talk") for _ in range(20)]
    for stream_id in streams:
        talk.send(stream_id, run)

    assert sum(ear.runs for ear in methods.ears) == 4
    talk.open_windows()
    assert {talk.status(stream_id) for stream_id in streams} == {""}
    assert sum(ear.runs for ear in methods.ears) == 20
    assert world.served.answers.held == 0


async def test_an_answer_that_nobody_takes_is_broken_off(methods: Methods) -> None:
    world = server(methods)
    talk = world.talk(stalled_ms=60_000)
    stuck = talk.ask("/t.T/Ask", RUN(queue=MIB).SerializeToString())
    assert talk.status(stuck) == ""
    assert talk.queued > 0

    for _ in range(7):
        world.pass_time(10_000)

    assert talk.ends.get(stuck) is None
    assert talk.status(stuck) == "reset"
    assert (talk.queued, talk.open_calls) == (0, 0)
