"""Who counts as alive, for how long, and who is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pocketmq.broker.events import BrokerEvents
from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

from ...fake_calls import FakeUser
from .connected import PRODUCER, Connected

SCAN_MS = 5_000


class Told:
    """What is told of clients, in order."""

    def __init__(self, events: BrokerEvents) -> None:
        self.events: list[str] = []
        events.client_gone.append(lambda client: self.events.append(f"{client} gone"))
        events.client_session_ended.append(
            lambda session: self.events.append(f"{session.client_id} ended")
        )


@pytest.fixture
async def connected(tmp_path: Path) -> AsyncIterator[Connected]:
    connected = Connected(tmp_path)
    connected.timers.start()
    yield connected
    await connected.timers.stop()


async def test_a_client_that_breaks_off_is_gone_soon_and_forgotten_later(
    connected: Connected,
) -> None:
    told = Told(connected.events)
    peer = connected.open(**{"x-mq-language": "JAVA"})
    peer.say(PRODUCER)
    peer.close()

    await connected.clock.advance(14_999)
    assert told.events == []
    await connected.clock.advance(SCAN_MS)
    assert told.events == ["c gone"]
    assert connected.sessions.find("c") is not None
    await connected.clock.advance(120_000)

    assert told.events == ["c gone", "c ended"]
    assert connected.sessions.find("c") is None


@pytest.mark.parametrize("language", ["RUST", "", "FORTH"])
async def test_a_client_that_beats_seldom_has_more_time(
    connected: Connected, language: str
) -> None:
    told = Told(connected.events)
    connected.sessions.record_activity("c", language)

    await connected.clock.advance(44_999)
    assert told.events == []
    await connected.clock.advance(SCAN_MS)

    assert told.events == ["c gone"]


async def test_a_client_with_an_open_stream_is_silent_after_two_minutes_and_not_forgotten(
    connected: Connected,
) -> None:
    told = Told(connected.events)
    connected.open().say(PRODUCER)

    await connected.clock.advance(119_999)
    assert told.events == []
    await connected.clock.advance(1_000_000)

    assert told.events == ["c gone"]
    session = connected.sessions.find("c")
    assert session is not None
    assert session.settings == PRODUCER


async def test_a_client_that_is_heard_again_can_be_gone_again(connected: Connected) -> None:
    told = Told(connected.events)
    alive: list[str] = []
    connected.events.client_alive.append(alive.append)
    for _ in range(2):
        connected.sessions.record_activity("c", "python")
        await connected.clock.advance(15_000 + SCAN_MS)

    assert told.events == ["c gone", "c gone"]
    assert alive == ["c", "c"]


async def test_heartbeats_keep_a_client_without_a_stream(connected: Connected) -> None:
    told = Told(connected.events)
    for _ in range(30):
        connected.sessions.record_activity("c", "PYTHON")
        await connected.clock.advance(10_000)

    assert told.events == []


async def test_goodbye_of_somebody_unknown_is_told_as_well(connected: Connected) -> None:
    told = Told(connected.events)

    connected.sessions.end("c")

    assert told.events == ["c gone"]


# --- whose session it is

HERE, ELSEWHERE = "10.0.0.5:1", "10.0.0.6:1"
ALICE, EVE = FakeUser("alice"), FakeUser("eve")
BYE = v2.NotifyClientTerminationRequest()


async def test_what_another_user_says_under_the_same_client_id_is_of_another_session(
    connected: Connected,
) -> None:
    told = Told(connected.events)
    mine, theirs = connected.open(user=ALICE), connected.open(user=EVE)
    mine.say(PRODUCER)
    theirs.say(v2.Settings(client_type=v2.PRODUCER, publishing=v2.Publishing()))
    assert connected.ask("NotifyClientTermination", BYE, user=EVE).status.code == v2.OK
    connected.ask("Heartbeat", v2.HeartbeatRequest(client_type=v2.PRODUCER), user=EVE)

    session = connected.sessions.find("alice/c")
    assert session is not None
    assert session.stream is mine.receiver
    assert session.settings == PRODUCER
    assert told.events == ["eve/c ended", "eve/c gone"]


@pytest.mark.parametrize("metadata", [{}, {"pocketmq-relayed": "10.0.0.6"}])
async def test_without_users_another_host_neither_takes_nor_ends_a_session_whose_client_lives(
    connected: Connected, metadata: dict[str, str]
) -> None:
    told = Told(connected.events)
    mine = connected.open(peer=HERE, **{"x-mq-language": "JAVA"})
    mine.say(PRODUCER)
    peer = HERE if metadata else ELSEWHERE
    with pytest.raises(InvalidArgument, match=r"'c' is in use from 10\.0\.0\.5"):
        connected.open(peer=peer, **metadata).say(PRODUCER)
    ended = connected.ask(
        "NotifyClientTermination", BYE, {"x-mq-client-id": "c", **metadata}, peer=peer
    )

    assert ended.status.code == v2.FORBIDDEN
    session = connected.sessions.find("c")
    assert session is not None
    assert session.stream is mine.receiver
    assert told.events == []


async def test_a_client_goes_on_from_another_host_once_its_streams_have_ended(
    connected: Connected,
) -> None:
    mine = connected.open(peer=HERE)
    mine.say(PRODUCER)
    mine.close()
    connected.open(peer=ELSEWHERE).say(PRODUCER)
    assert connected.ask("NotifyClientTermination", BYE, peer=ELSEWHERE).status.code == v2.OK


async def test_a_client_whose_host_died_goes_on_from_another_one_soon_though_that_beats(
    connected: Connected,
) -> None:
    mine = connected.open(peer=HERE, **{"x-mq-language": "JAVA"})
    mine.say(PRODUCER)
    for _ in range(3):
        await connected.clock.advance(5_000)
        beat = v2.HeartbeatRequest(client_type=v2.PRODUCER)
        assert connected.ask("Heartbeat", beat, peer=ELSEWHERE).status.code == v2.OK
    theirs = connected.open(peer=ELSEWHERE)
    theirs.say(PRODUCER)

    assert mine.stream.is_over
    session = connected.sessions.find("c")
    assert session is not None
    assert session.stream is theirs.receiver


async def test_one_machine_by_its_several_loopback_addresses_is_one_host(
    connected: Connected,
) -> None:
    connected.open(peer="127.0.0.1:1").say(PRODUCER)
    for peer in ("[::1]:1", "127.0.0.2:1"):
        connected.open(peer=peer).say(PRODUCER)
