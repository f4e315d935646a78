"""The sessions that official clients of six languages had with a real Apache RocketMQ 5.5.0, held with our broker.

Only the first calls of each kind were kept, so that less is compared than of single calls: every answer whose call is
about something that was kept.
"""

from __future__ import annotations

import asyncio
import functools
import tempfile
from pathlib import Path

import pytest

from ...recorded_v2 import recorded_groups
from .deviations import EVERYWHERE, kind_everywhere, unexpected
from .documents import began_ms, session
from .replay import Replay
from .sessions import is_complete, session_differences, told_groups, told_topics
from .world import recorded_world

SESSIONS = [name for name in recorded_groups() if name.startswith("session-")]


@functools.cache
def replayed() -> Replay:
    """Return all sessions as they are held with our broker."""

    async def replay(folder: str) -> Replay:
        found = sorted((case for name in SESSIONS for case in session(name)), key=began_ms)
        made = told_topics(found), told_groups(found)
        async with recorded_world(Path(folder), *made, began_ms(found[0]) - 1_000) as world:
            held = Replay(*world, patience_ms=100)
            await held.run(found)
        return held

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(replay(folder))


@functools.cache
def observed(name: str) -> dict[str, list[str]]:
    """Return the differences of the calls of session NAME, by their ids."""
    return {
        case["id"]: session_differences(case, replayed())
        for case in session(name)
        if is_complete(case, replayed())
    }


@pytest.mark.parametrize("name", SESSIONS)
def test_a_client_hears_what_apaches_broker_said(name: str) -> None:
    assert unexpected(observed(name)) == {}


def test_every_kind_of_call_is_compared() -> None:
    compared = {
        case["rpc"] for name in SESSIONS for case in session(name) if case["id"] in observed(name)
    }

    assert compared == {case["rpc"] for name in SESSIONS for case in session(name)}


def test_what_may_differ_in_any_call_is_observed() -> None:
    lines = [line for name in SESSIONS for found in observed(name).values() for line in found]

    assert {kind_everywhere(line) for line in lines} >= {
        "endpoints are echoed",
        "Node.js gets another back-off",
    }
    assert set(EVERYWHERE) >= {kind_everywhere(line) for line in lines}
