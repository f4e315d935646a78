"""Telemetry streams: what clients wait for, what they break off, and what they do not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.proto.errors import InvalidArgument, Overloaded
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

from .connected import PRODUCER, Connected, consumer


@pytest.fixture
def connected(tmp_path: Path) -> Connected:
    return Connected(tmp_path)


async def test_the_first_answer_comes_once_more_a_while_later(connected: Connected) -> None:
    connected.timers.start()
    peer = connected.open()
    first = peer.say(PRODUCER)
    peer.say(PRODUCER)

    await connected.clock.advance(1_499)
    assert len(peer.stream.sent) == 2
    await connected.clock.advance(60_000)

    assert [command.settings for command in peer.stream.sent] == [first] * 3
    await connected.timers.stop()


async def test_nothing_is_sent_to_a_stream_that_is_over(connected: Connected) -> None:
    connected.timers.start()
    peer = connected.open()
    peer.say(PRODUCER)

    peer.receiver.on_end()
    await connected.clock.advance(60_000)

    assert peer.stream.is_over
    assert peer.stream.error is None
    assert len(peer.stream.sent) == 1
    await connected.timers.stop()


@pytest.mark.parametrize("who", [None, "", " "])
def test_who_does_not_say_who_he_is_is_told_so_and_the_stream_ends(
    connected: Connected, who: str | None
) -> None:
    peer = connected.open(who)

    peer.receiver.on_message(v2.TelemetryCommand(settings=PRODUCER))
    peer.receiver.on_end()

    (told,) = peer.stream.sent
    assert told.status.code == v2.CLIENT_ID_REQUIRED
    assert peer.stream.is_over
    assert not len(connected.sessions)


@pytest.mark.parametrize(
    "command",
    [v2.TelemetryCommand(), v2.TelemetryCommand(thread_stack_trace={"nonce": "n1"})],
    ids=["empty", "not asked for"],
)
def test_other_commands_are_passed_over(connected: Connected, command: v2.TelemetryCommand) -> None:
    peer = connected.open()

    peer.receiver.on_message(command)

    assert not peer.stream.sent
    assert not peer.stream.is_over


def test_bad_settings_leave_the_good_ones(connected: Connected) -> None:
    connected.open().say(consumer())

    with pytest.raises(InvalidArgument):
        connected.open().say(v2.Settings())

    session = connected.sessions.find("c")
    assert session is not None
    assert session.settings == consumer()


def test_a_client_that_does_not_read_is_dropped_at_its_next_settings(connected: Connected) -> None:
    peer = connected.open()
    peer.say(PRODUCER)
    peer.stream.waiting_bytes = 256 * 1024

    session = connected.sessions.find("c")
    assert session is not None
    assert session.stream is not None
    assert not session.stream.has_room
    with pytest.raises(Overloaded, match="read the messages of the broker"):
        peer.say(PRODUCER)


def test_commands_go_to_the_newest_stream_that_is_open(connected: Connected) -> None:
    older, newer = connected.open(), connected.open()
    older.say(PRODUCER)
    newer.say(PRODUCER)
    older.say(PRODUCER)
    session = connected.sessions.find("c")
    assert session is not None

    assert session.stream is newer.receiver
    newer.close()
    assert session.stream is older.receiver
    older.close()
    assert session.stream is None


def test_a_client_has_four_streams_at_most(connected: Connected) -> None:
    streams = [connected.open() for _ in range(5)]
    for peer in streams:
        peer.say(PRODUCER)

    assert [peer.stream.is_over for peer in streams] == [True, False, False, False, False]
