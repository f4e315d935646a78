"""Who counts as alive, for how long, and who is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pocketmq.broker.service_v2.sessions import Sessions

from .connected import PRODUCER, Connected

SCAN_MS = 5_000


class Told:
    """What is told of clients, in order."""

    def __init__(self, sessions: Sessions) -> None:
        self.events: list[str] = []
        sessions.on_gone.append(lambda client: self.events.append(f"{client} gone"))
        sessions.on_end.append(lambda session: self.events.append(f"{session.client_id} ended"))


@pytest.fixture
async def connected(tmp_path: Path) -> AsyncIterator[Connected]:
    connected = Connected(tmp_path)
    connected.timers.start()
    yield connected
    await connected.timers.stop()


async def test_a_client_that_breaks_off_is_gone_soon_and_forgotten_later(
    connected: Connected,
) -> None:
    told = Told(connected.sessions)
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
    told = Told(connected.sessions)
    connected.sessions.hear("c", language)

    await connected.clock.advance(44_999)
    assert told.events == []
    await connected.clock.advance(SCAN_MS)

    assert told.events == ["c gone"]


async def test_a_client_with_an_open_stream_is_silent_after_two_minutes_and_not_forgotten(
    connected: Connected,
) -> None:
    told = Told(connected.sessions)
    connected.open().say(PRODUCER)

    await connected.clock.advance(119_999)
    assert told.events == []
    await connected.clock.advance(1_000_000)

    assert told.events == ["c gone"]
    session = connected.sessions.find("c")
    assert session is not None
    assert session.settings == PRODUCER


async def test_a_client_that_is_heard_again_can_be_gone_again(connected: Connected) -> None:
    told = Told(connected.sessions)
    alive: list[str] = []
    connected.sessions.on_alive.append(alive.append)
    for _ in range(2):
        connected.sessions.hear("c", "python")
        await connected.clock.advance(15_000 + SCAN_MS)

    assert told.events == ["c gone", "c gone"]
    assert alive == ["c", "c"]


async def test_heartbeats_keep_a_client_without_a_stream(connected: Connected) -> None:
    told = Told(connected.sessions)
    for _ in range(30):
        connected.sessions.hear("c", "PYTHON")
        await connected.clock.advance(10_000)

    assert told.events == []


async def test_goodbye_of_somebody_unknown_is_told_as_well(connected: Connected) -> None:
    told = Told(connected.sessions)

    connected.sessions.end("c")

    assert told.events == ["c gone"]
