"""Mutated conversations over real sockets, whose peers go in every way: the server lives, and nothing stays."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from pocketmq.proto.carriers import Http2Carrier
from pocketmq.proto.rpc import Limits

from ..differential.witness import RUN, WireObserver
from ..peer import Peer
from ..stage import turns
from .conversations import CONVERSATIONS
from .mutations import mutated, reads

INPUTS = 150
_LIMITS = Limits(receive_bytes_max=10_000, queue_bytes=200, queue_bytes_max=5_000)


@pytest.mark.long
@pytest.mark.parametrize("name", CONVERSATIONS)
async def test_a_mutated_conversation_costs_its_connection_alone(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    said = CONVERSATIONS[name]()
    witness = WireObserver()
    carrier = Http2Carrier([witness.methods()], limits=_LIMITS)
    port = await carrier.start("127.0.0.1", 0)
    before = len(asyncio.all_tasks())
    for seed in range(INPUTS):
        chooser = random.Random(f"{name} {seed}")
        async with Peer.open(port, polite=chooser.random() < 0.5, greet=False) as peer:
            await speak(peer, mutated(said, chooser), chooser)
    async with Peer.open(port) as honest:
        stream = honest.call("/test.Witness/Plain", RUN(run_id=1).SerializeToString())
        assert (await honest.answer(stream)).status == "0"
    await turns(lambda: carrier.connections == 0)
    assert carrier.served.half_sent == 0
    await turns(lambda: len(asyncio.all_tasks()) == before)
    assert [one for one in caplog.records if one.levelno >= logging.WARNING] == []
    await carrier.stop(0)


async def speak(peer: Peer, data: bytes, chooser: random.Random) -> None:
    """Send DATA, now and then with a pause, and go: quietly, with a reset, or with half of the connection first."""
    for read in reads(data, chooser):
        if not await peer.send(read):
            break
        if chooser.random() < 0.1:
            await asyncio.sleep(0)
    match chooser.randrange(4):
        case 0:
            peer.wire.half_close()
            await peer.ended()
        case 1:
            peer.wire.break_off()
        case 2:
            await asyncio.sleep(0)
        case _:
            pass
