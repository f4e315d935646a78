"""Every call that a real Apache RocketMQ 5.5.0 was recorded with, made again on our broker: the answers are the same.

They may differ in what the README of the recordings lists as varying, and on purpose in what
docs/differences-in-answers.md lists (deviations.py says in which case).
"""

from __future__ import annotations

import asyncio
import functools
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto.gen import rocketmq_v2_pb2 as v2

from ...recorded import unpacked
from ...recorded_names import named_groups, named_topics
from ...recorded_v2 import recorded_group, recorded_groups
from .calls import Answer
from .comparison import differences
from .deviations import DEVIATIONS, EVERYWHERE, deviations, kind_everywhere, unexpected
from .documents import began_ms, cases, names
from .replay import Replay
from .world import recorded_world

DOCS = Path(__file__).parents[3] / "docs/differences-in-answers.md"
#: Recordings that followed each other on one broker, by the prefix of its topics and groups.
RUNS = {
    "R-": (
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
    ),
    "K-": (
        "cluster-query-route",
        "cluster-telemetry",
        "cluster-send",
        "cluster-query-assignment",
        "cluster-ack",
        "cluster-transaction",
        "cluster-delay-recall",
        "cluster-lite",
    ),
}
GROUPS = {group: prefix for prefix, groups in RUNS.items() for group in groups}
#: Recordings that are not called again, and why.
LEFT_OUT = {
    "special": "brokers that ask for passwords, without replicas, or with a device that is too slow"
}
#: Cases that are not called again, and why.
NOT_CALLED = {
    "receive-45": "a broker that lets nobody wait",
    "delay-recall-02": "a broker that recalls nothing",
    "cluster-delay-recall-02": "a broker that recalls nothing",
}
#: Codes of Apache's that our broker does not answer in these calls, and why.
NOT_GIVEN = {
    "INTERNAL_SERVER_ERROR": "nothing of what is recorded is a fault of ours",
    "UNRECOGNIZED_CLIENT_TYPE": "clients without settings are served",
    "TOO_MANY_REQUESTS": "receive-45 is not called again",
    "UNAUTHORIZED": "special is not called again",
    "MASTER_PERSISTENCE_TIMEOUT": "special is not called again",
    "SLAVE_PERSISTENCE_TIMEOUT": "special is not called again",
}


@functools.cache
def answers(prefix: str) -> dict[str, Answer]:
    """Return what our broker answers in the run of PREFIX, by case id."""

    async def replayed(folder: str) -> dict[str, Answer]:
        found = [case for case in cases(*RUNS[prefix]) if case["id"] not in NOT_CALLED]
        topics, groups = names(found)
        made = named_topics(prefix, topics), named_groups(prefix, groups)
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
        case["id"]: differences(case, answers(GROUPS[group])[case["id"]])
        for case in recorded_group(group)["cases"]
        if case["id"] not in NOT_CALLED
    }


def codes(message: Any) -> set[str]:
    """Return the names of the codes in MESSAGE, an answer; those of other protocols are none."""
    if message.DESCRIPTOR.file is not v2.DESCRIPTOR:
        return set()
    statuses = [entry.status for entry in getattr(message, "entries", ())]
    if "status" in message.DESCRIPTOR.fields_by_name and message.HasField("status"):
        statuses.append(message.status)
    return {v2.Code.Name(status.code) for status in statuses}


@pytest.mark.parametrize("group", GROUPS)
def test_answers_are_apaches_but_for_what_differs_on_purpose(group: str) -> None:
    assert unexpected(observed(group)) == {}


def test_the_documented_list_is_what_is_observed() -> None:
    documented = re.findall(r"^- \*\*(.+?)\*\*", DOCS.read_text(), re.MULTILINE)

    assert sorted(documented) == sorted({*DEVIATIONS, *EVERYWHERE})
    assert {case for case, _, _ in deviations()} <= {
        case for prefix in RUNS for case in answers(prefix)
    }


def test_what_may_differ_in_any_call_is_observed() -> None:
    lines = [line for group in GROUPS for found in observed(group).values() for line in found]

    sessions = {"Node.js gets another back-off"}  # test_recorded_sessions.py
    assert {kind_everywhere(line) for line in lines} >= set(EVERYWHERE) - sessions


def test_every_recording_is_called_again_or_there_is_a_reason() -> None:
    single = {name for name in recorded_groups() if not name.startswith("session-")}

    assert {*GROUPS, *LEFT_OUT} == single


def test_every_code_is_answered_or_there_is_a_reason() -> None:
    rows = (unpacked("v2") / "v2/codes.tsv").read_text().splitlines()[1:]
    apaches = {name for _, name, count, _ in (row.split("\t") for row in rows) if int(count)}
    items = (
        item for prefix in RUNS for answer in answers(prefix).values() for item in answer.items
    )
    ours = {name for _, message in items for name in codes(message)}

    assert apaches - ours == set(NOT_GIVEN)
    assert ours - apaches == {"NOT_FOUND", "OFFSET_NOT_FOUND"}


def test_settings_come_again_on_streams_that_last() -> None:
    assert "settings: come again" in observed("telemetry")["telemetry-34"]
