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

from ...recorded_v2 import recorded_group, recorded_groups
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
#: Recordings that are not called again, and why.
LEFT_OUT = (
    {
        "special": "brokers that are asked for passwords, without replicas, or with syncs that take too long",
    }
    | dict.fromkeys(
        (
            "cluster-ack",
            "cluster-delay-recall",
            "cluster-query-assignment",
            "cluster-query-route",
            "cluster-send",
            "cluster-telemetry",
            "cluster-transaction",
        ),
        "the cases of the group without cluster-, asked of a proxy that is a process of its own",
    )
    | {"cluster-lite": "light topics, which only that proxy serves"}
)
#: Cases that are not called again, and why.
NOT_CALLED = {
    "receive-45": "a broker that lets nobody wait",
    "delay-recall-02": "a broker that recalls nothing",
    "server-command-05": "what a client is asked when an administrator wants to know",
}


@functools.cache
def answers() -> dict[str, Answer]:
    """Return what our broker answers, by case id."""

    async def replayed(folder: str) -> dict[str, Answer]:
        found = [case for case in cases(*RUN) if case["id"] not in NOT_CALLED]
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
    return {
        case["id"]: differences(case, answers()[case["id"]])
        for case in recorded_group(group)["cases"]
        if case["id"] not in NOT_CALLED
    }


@pytest.mark.parametrize("group", RUN)
def test_answers_are_apaches_but_for_what_differs_on_purpose(group: str) -> None:
    assert unexpected(observed(group)) == {}


def test_the_documented_list_is_what_is_observed() -> None:
    section = DOCS.read_text().split("## What differs on purpose")[1].split("\n## ")[0]
    documented = re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE)

    assert sorted(documented) == sorted({*DEVIATIONS, *EVERYWHERE})
    assert {case for case, _, _ in deviations()} <= set(answers())


def test_every_recording_is_called_again_or_there_is_a_reason() -> None:
    single = {name for name in recorded_groups() if not name.startswith("session-")}

    assert {*RUN, *LEFT_OUT} == single


def test_settings_come_again_on_streams_that_last() -> None:
    assert "settings: come again" in observed("telemetry")["telemetry-34"]
