"""`pocketmq top`: rates, lag with verdicts and owners of one moment, from two looks and from a cluster."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from pocketmq.client import Admin, GroupQueue, Message, Producer, PullConsumer, Queue
from pocketmq.tools.cli import run
from pocketmq.tools.lag.rows import LagFacts, LagRow, LagVerdict
from pocketmq.tools.top import ClusterLook, board, rendered

from ..integration.whole_broker import serving, store_config
from .group_reports import report

T0 = 1_700_000_000_000


def look(at_s: float, *queues: tuple[str, int, int, str]) -> ClusterLook:
    """Return the look at AT_S; of QUEUES, one of topic T each: group, committed and maximum, owner."""
    groups = []
    for number, (group, committed, high, owner) in enumerate(queues):
        queue = Queue("T", "b", number)
        facts = LagFacts(
            topic="T", queue_id=number, group=group, committed_offset=committed, min_offset=0,
            max_offset=high, skipped=number,
        )  # fmt: skip
        row = LagRow.of("b", facts, lag_bytes=None, oldest_unread_age_ms=None)
        place = GroupQueue(
            queue=queue, offset=committed, min_offset=0, max_offset=high, oldest_unread_ms=0,
            unread_bytes=None, processed_per_s=None, arrived_per_s=None, owner=owner,
            assigned_to="", filtered_count=0,
        )  # fmt: skip
        groups.append((report(group, queues=(place,)), [row]))
    total = sum(high for _, _, high, _ in queues)
    return ClusterLook(
        at_ms=T0 + int(at_s * 1000), brokers=1, messages={"T": (total, total)}, groups=groups
    )


def test_the_first_look_has_no_rates() -> None:
    found = board(None, look(0, ("g", 4, 10, "m")))

    assert found.seconds == 0
    assert [(one.messages, one.in_per_s) for one in found.topics] == [(10, None)]
    (group,) = found.groups
    assert (group.lag, group.verdict, group.read_per_s) == (6, LagVerdict.LAGGING, None)


def test_rates_are_between_two_looks() -> None:
    before = look(0, ("g", 4, 10, "m"), ("h", 0, 5, ""))
    after = look(5, ("g", 14, 20, "m"), ("h", 5, 5, "n"))

    found = board(before, after)

    assert found.topics[0].in_per_s == 2
    g, h = sorted(found.groups, key=lambda line: line.group)
    assert (g.in_per_s, g.read_per_s, g.catch_up_s) == (2, 2, None)
    assert (h.in_per_s, h.read_per_s, h.catch_up_s, h.skipped) == (0, 1, 0, 1)
    assert [owner for _, owner in found.queues] == ["m", "n"]


@pytest.mark.parametrize(
    ("seconds", "verdict"), [(9, LagVerdict.LAGGING), (10, LagVerdict.STALLED)]
)
def test_what_stands_still_is_said_when_everybody_had_time_to_commit(
    seconds: float, verdict: LagVerdict
) -> None:
    found = board(look(0, ("g", 4, 10, "m")), look(seconds, ("g", 4, 12, "m")))

    assert found.groups[0].verdict is verdict


def test_the_worst_comes_first() -> None:
    found = board(None, look(0, ("fine", 10, 10, ""), ("gone", 11, 10, ""), ("late", 4, 10, "")))

    assert [line.group for line in found.groups] == ["gone", "late", "fine"]
    assert [one.row.facts.group for one, _ in found.queues] == ["gone", "late", "fine"]


def test_a_long_list_is_cut_and_says_so() -> None:
    found = board(None, look(0, *((f"g{number}", 4, 10, "[m]") for number in range(30))))
    out = io.StringIO()

    Console(file=out, width=160, markup=False).print(rendered(found))

    assert "… 20 more lines" in out.getvalue()
    assert "[m]" in out.getvalue()


def use(nameserver: str) -> None:
    with Admin(nameserver) as admin, Producer(nameserver) as producer:
        admin.create_topic("T", queues=1)
        for _ in range(5):
            producer.send(Message("T", b"x"))


async def test_a_cluster_is_shown_once_as_json_and_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(nameserver: str) -> tuple[str, str]:
        use(nameserver)
        with PullConsumer("g", {"T": "*"}, nameserver) as consumer:
            assert len(consumer.poll(10)) > 0
            arguments = ["top", "--nameserver", nameserver, "--interval", "100ms"]
            assert run([*arguments, "--once", "--json"]) == 0
            documents = capsys.readouterr().out
            assert run([*arguments, "--iterations", "1", "--group", "g"]) == 0
            return documents, capsys.readouterr().out

    async with serving(store_config(tmp_path)) as (nameserver, _):
        documents, text = await asyncio.to_thread(shown, nameserver)

    (document,) = map(json.loads, documents.splitlines())
    assert document["seconds"] > 0
    assert document["topics"] == [{"topic": "T", "messages": 5, "in_per_s": 0.0}]
    (group,) = document["groups"]
    assert (group["group"], group["readers"]) == ("g", 1)
    (queue,) = [one for one in document["queues"] if one["topic"] == "T"]
    assert queue["owner"]
    assert queue["owner"] in text
    assert text.startswith("1 broker at ")


def test_wrong_options_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["top", "--interval", "0s"]) == 2
    assert "give 100ms or more" in capsys.readouterr().err
    assert run(["top", "--once", "--iterations", "2"]) == 2
