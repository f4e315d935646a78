"""Floods end: with GOAWAY, within the frames that floods.py says, and nothing of them is left."""

from __future__ import annotations

import pytest

from .floods import FLOODS, MISTAKES, Flood
from .frames import Type
from .peer import Peer
from .stage import staged


@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS.keys())
async def test_a_flood_is_told_to_calm_down_and_nothing_is_left(flood: Flood) -> None:
    async with staged() as stage:
        async with Peer.open(stage.port) as peer:
            with stage.standing_clock():
                await flood.sent(peer, stage)
                end = await peer.ended_at_once()
            # The connection itself may linger, so that its last words are heard.
            assert stage.owned().keys() <= {"ServerConnection", "ServerConversation"}
        assert end is not None
        assert end.code == flood.code
        assert end.payload[8:], "GOAWAY gives the reason"


@pytest.mark.parametrize(("sent", "code"), MISTAKES.values(), ids=MISTAKES.keys())
async def test_a_mistake_ends_the_connection_with_its_code(sent: bytes, code: int) -> None:
    async with staged() as stage:
        async with Peer.open(stage.port, greet=sent[:4] != b"GRPC") as peer:
            await peer.send(sent)
            end = await peer.ended()
        if end is None:  # Not even HTTP/2.
            assert sent.startswith(b"GRPC")
        else:
            assert (end.code, peer.frames[-1].type) == (code, Type.GOAWAY)
