"""Batches of scheduled messages, each with its own delivery time, and a broker that gets them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...client import AsyncProducer, Message, Receipts
from ...proto.errors import PocketMQError
from . import servers

BODY_BYTES: Final = 128
BATCH: Final = 1_000
IN_FLIGHT: Final = 16
#: As the client sends it, before the broker adds what it needs to know.
RECORD_BYTES: Final = servers.record_bytes(BODY_BYTES) + len("TIMER_DELIVER_MS") + 1 + 13 + 1

_INDEX_BYTES: Final = 4
_FILLER: Final = bytes(range(BODY_BYTES - _INDEX_BYTES))

#: Unix milliseconds.
Instants = NDArray[np.int64]


def timed_batch(first: int, instants: Sequence[int]) -> list[Message]:
    """Return a message for each of INSTANTS; its body begins with its index, from FIRST on."""
    return [
        Message(servers.TOPIC, index.to_bytes(_INDEX_BYTES, "big") + _FILLER, deliver_at=instant)
        for index, instant in enumerate(instants, first)
    ]


def index_of(body: bytes) -> int:
    """Return the index of the message with BODY."""
    return int.from_bytes(body[:_INDEX_BYTES], "big")


async def insert(nameserver: str, due_ms: Instants) -> float:
    """Send a message for each of DUE_MS; return the seconds it took.

    Raises InvalidDelay if one was past when the broker accepted it, PocketMQError if a receipt has another time.
    """
    under_way: deque[tuple[int, asyncio.Future[Receipts]]] = deque()
    async with AsyncProducer(nameserver) as producer:
        began = time.perf_counter()
        for at in range(0, len(due_ms), BATCH):
            if len(under_way) == IN_FLIGHT:
                await _acknowledged(*under_way.popleft())
            instants: list[int] = due_ms[at : at + BATCH].tolist()
            sent = producer.send_many_nowait(timed_batch(at, instants))
            under_way.append((instants[0], sent))
            await asyncio.sleep(0)
        while under_way:
            await _acknowledged(*under_way.popleft())
        return time.perf_counter() - began


async def _acknowledged(due_ms: int, receipts: asyncio.Future[Receipts]) -> None:
    told = (await receipts)[0].due_ms
    if told != due_ms:
        raise PocketMQError(f"a message for {due_ms} is due at {told} by its receipt")
