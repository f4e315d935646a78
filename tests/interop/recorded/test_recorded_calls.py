"""Every call that a real Apache RocketMQ 5.5.0 was recorded with, made again on our broker: the answers are the same.

They may differ in what the README of the recordings lists as varying, and in what docs/official-clients.md lists as
differing on purpose (deviations.py says in which case).
"""

from __future__ import annotations

import asyncio
import functools
import re
import tempfile
from pathlib import Path

import pytest

from ...recorded_v2 import recorded_group
from .calls import Answer
from .comparison import differences
from .deviations import DEVIATIONS, EVERYWHERE, deviations, unexpected
from .documents import began_ms, cases, names
from .replay import Replay
from .world import named_groups, named_topics, recorded_world

DOCS = Path(__file__).parents[3] / "docs/official-clients.md"
RUN = (
    "query-route",
    "telemetry",
    "heartbeat",
    "send",
    "query-assignment",
    "receive",
    "ack",
    "dead-letter",
    "transaction",
    "delay-recall",
    "pull-offset",
    "lite",
    "server-command",
)
COMPARED = ("query-route", "query-assignment", "heartbeat", "telemetry")


@functools.cache
def answers() -> dict[str, Answer]:
    """Return what our broker answers, by case id."""

    async def replayed(folder: str) -> dict[str, Answer]:
        found = cases(*RUN)
        topics, groups = names(found)
        made = named_topics("R-", topics), named_groups("R-", groups)
        async with recorded_world(Path(folder), *made, began_ms(found[0]) - 1_000) as world:
            replay = Replay(*world)
            await replay.run(found)
        return replay.answers

    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(replayed(folder))


@functools.cache
def observed(group: str) -> dict[str, list[str]]:
    """Return the differences of the cases of GROUP, by case id."""
    found = recorded_group(group)["cases"]
    return {case["id"]: differences(case, answers()[case["id"]]) for case in found}


@pytest.mark.parametrize("group", COMPARED)
def test_answers_are_apaches_but_for_what_differs_on_purpose(group: str) -> None:
    assert unexpected(observed(group)) == {}


def test_the_documented_list_is_what_is_observed() -> None:
    section = DOCS.read_text().split("## What differs on purpose")[1].split("\n## ")[0]
    documented = re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE)

    assert sorted(documented) == sorted({*DEVIATIONS, *EVERYWHERE})
    assert {case for case, _, _ in deviations()} <= set(answers())


def test_settings_come_again_on_streams_that_last() -> None:
    assert "settings: come again" in observed("telemetry")["telemetry-34"]
