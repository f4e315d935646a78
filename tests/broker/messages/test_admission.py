"""What a run has to be before it may be stored, and which of its messages are half messages."""

from __future__ import annotations

import pytest

from pocketmq.broker.messages.admission import ValidatedBatch, validate
from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.run import Run

from ...runs import make_run


def admitted(run: Run) -> ValidatedBatch:
    return validate(bytes(run.records), run.columns.sizes.tolist(), run.topic, run.queue)


def test_tran_msg_is_read_as_java_reads_a_truth_value() -> None:
    values = ["true", "TRUE", "false", "yes", "true"]
    run = make_run("T", 0, [b"x"] * 5, [{"TRAN_MSG": value} for value in values])

    halves = admitted(run).halves

    assert halves is not None
    assert halves.tolist() == [True, True, False, False, True]


@pytest.mark.parametrize("properties", [{}, {"TRAN_MSG": "false"}, {"DELAY": "1"}])
def test_a_run_without_half_messages_has_none(properties: dict[str, str]) -> None:
    assert admitted(make_run("T", 0, [b"x"] * 2, properties)).halves is None


@pytest.mark.parametrize("name", ["DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
def test_a_half_message_with_a_delay_is_refused(name: str) -> None:
    half, delayed = {"TRAN_MSG": "true"}, {name: "3"}
    run = make_run("T", 0, [b"half", b"delayed", b"both"], [half, delayed, half | delayed])

    with pytest.raises(InvalidArgument, match="cannot be delayed as well") as caught:
        admitted(run)

    assert (caught.value.details["field"], caught.value.details["index"]) == (name, "2")
