"""What is asked of a pop, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...proto.errors import PocketMQError
from ..filters.choice import Choice


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """One receive. CHOICE is a filter at work (filters/choice.py), None for every message.

    BATCH messages at most; each is invisible to others for INVISIBLE_MS, or, with AUTO_RENEW, while the client lives.
    A receive that repeats an ATTEMPT_ID gets the same messages, while they are not finished.
    WAIT_MS: how long it waits where there is nothing.
    """

    group: str
    topic: str
    client_id: str
    batch: int
    invisible_ms: int
    wait_ms: int = 0
    auto_renew: bool = False
    attempt_id: str = ""
    choice: Choice | None = None


class Delivery(NamedTuple):
    """One delivery: RECORD is whole, as it is stored; ATTEMPT counts from 1."""

    record: bytes
    topic: str
    queue: int
    offset: int
    attempt: int
    handle: str
    invisible_ms: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Popped:
    """The end of a receive. FILTERED_ONLY: nothing was delivered, for what was due went to the dead letters.

    ERROR: nothing was delivered, and why.
    """

    deliveries: Sequence[Delivery] = ()
    filtered_only: bool = False
    error: PocketMQError | None = None
