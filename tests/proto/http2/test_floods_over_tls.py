"""Floods over TLS end as those in the clear do."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime

import pytest

from pocketmq.broker.ports.certificates import development_certificate
from pocketmq.proto.rpc import Certificate

from .floods import FLOODS
from .peer import Peer
from .stage import staged

CERTIFICATE = development_certificate([], datetime.now(UTC))


async def shown() -> Certificate:
    return CERTIFICATE


@pytest.mark.parametrize("name", ["PING", "full CONTINUATION", "rapid resets of calls that wait"])
async def test_a_flood_over_tls_is_told_to_calm_down(name: str) -> None:
    context = ssl.create_default_context(cadata=CERTIFICATE.chain.decode())
    context.set_alpn_protocols(["h2"])
    flood = FLOODS[name]
    async with staged(certificate=shown) as stage:
        async with Peer.open(stage.port, tls=context) as peer:
            with stage.standing_clock():
                await flood.sent(peer, stage)
                end = await peer.ended_at_once()
        assert end is not None
        assert end.code == flood.code


async def test_tls_that_breaks_within_costs_its_connection_alone() -> None:
    context = ssl.create_default_context(cadata=CERTIFICATE.chain.decode())
    context.set_alpn_protocols(["h2"])
    async with (
        staged(certificate=shown) as stage,
        Peer.open(stage.port, tls=context) as peer,
    ):
        await peer.round_trip()
        await peer.wire.send_as_it_is(b"\x17\x03\x03\x00\x20" + bytes(32))
        await peer.ended()
