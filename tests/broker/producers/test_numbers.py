"""The numbers of a run, in its fields and in its records."""

from __future__ import annotations

import pytest

from pocketmq.broker.messages.admission import validate
from pocketmq.broker.producers.run_numbers import RunNumbers, each_has_its_own
from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from ...numbered import PRODUCER, numbered_run


def said(run: pb.ProduceRun) -> bool:
    admitted = validate(run.records, run.sizes, run.topic, run.queue)
    return each_has_its_own(RunNumbers.of(run), admitted.run)


def test_the_first_record_may_speak_for_all() -> None:
    assert said(numbered_run([b"a", b"b", b"c"], 5)) is False


def test_each_record_may_have_its_own() -> None:
    assert said(numbered_run([b"a", b"b", b"c"], 5, each=True)) is True
    assert said(numbered_run([b"a"], 5)) is True


def test_the_name_in_a_body_is_no_property() -> None:
    assert said(numbered_run([b"a", b"PRODUCER_SEQUENCE\x01abc:0:0:1\x02"], 0)) is False


def test_other_properties_may_stand_around_it() -> None:
    run = numbered_run([b"a", b"b"], 0, properties=[{"KEYS": "k"}, {"KEYS": "k"}])

    assert said(run) is False


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("first_sequence", 6),
        ("producer_epoch", 1),
        ("producer_id", PRODUCER + 1),
    ],
)
def test_fields_that_contradict_the_records_are_refused(field: str, value: int) -> None:
    run = numbered_run([b"a", b"b"], 5)
    setattr(run, field, value)

    with pytest.raises(InvalidArgument, match="PRODUCER_SEQUENCE"):
        said(run)


def test_a_count_that_is_not_the_run_s_is_refused() -> None:
    run = numbered_run([b"a"], 5)
    longer = numbered_run([b"a", b"b"], 5)
    second = longer.records[longer.sizes[0] :]

    with pytest.raises(InvalidArgument, match="PRODUCER_SEQUENCE"):
        said(
            numbered_run(
                [b"a", b"b"], 5, records=run.records + second, sizes=[*run.sizes, len(second)]
            )
        )


def test_a_run_without_the_property_is_refused() -> None:
    properties = [{"KEYS": "a"}, {"KEYS": "b"}]
    run = numbered_run([b"a", b"b"], 0, properties=properties)
    run.records = run.records.replace(b"PRODUCER_SEQUENCE", b"PRODUCER_SEQUENCY")

    with pytest.raises(InvalidArgument, match="record 0 of the batch: the property") as raised:
        said(run)

    assert raised.value.details["field"] == "PRODUCER_SEQUENCE"


def test_a_stray_number_in_another_record_is_refused() -> None:
    run = numbered_run([b"a", b"b"], 0, each=True)
    run.records = run.records.replace(b":0:1:1", b":0:2:1")

    with pytest.raises(InvalidArgument, match="record 1 of the batch"):
        said(run)


def test_once_the_first_record_speaks_for_all_the_others_are_not_looked_at() -> None:
    run = numbered_run([b"a", b"b"], 0, each=True)
    run.records = run.records.replace(b":0:0:1", b":0:0:2")

    assert said(run) is False


def test_a_later_number_in_the_first_record_wins_and_is_refused() -> None:
    twice = [{"PRODUCER_SEQUENCE": "", "XRODUCER_SEQUENCE": "1:0:0:1"}, {}]
    run = numbered_run([b"a", b"b"], 0, properties=twice)
    run.records = run.records.replace(b"XRODUCER", b"PRODUCER")

    with pytest.raises(InvalidArgument, match="record 0 of the batch"):
        said(run)


@pytest.mark.parametrize(
    ("field", "value"),
    [("producer_id", 1 << 63), ("producer_epoch", -1), ("first_sequence", -1)],
)
def test_impossible_fields_are_refused(field: str, value: int) -> None:
    run = numbered_run([b"a"], 0)
    setattr(run, field, value)

    with pytest.raises(InvalidArgument, match=field):
        RunNumbers.of(run)


@pytest.mark.parametrize(
    "text", [b"", b"1:2:3", b"0:0:0:1", b"1:0:0:0", b"1:0:0:99999999999", b"1:0:-1:1", b"x:0:0:1"]
)
def test_what_is_no_number_is_not_read(text: bytes) -> None:
    assert RunNumbers.parse(text) is None


def test_what_is_written_is_read_again() -> None:
    numbers = RunNumbers((1 << 63) - 1, 3, 1 << 40, 1000)

    assert RunNumbers.parse(numbers.text().encode()) == numbers
    assert RunNumbers.parse(numbers.own(5).encode()) == RunNumbers(
        numbers.producer_id, 3, (1 << 40) + 5, 1
    )
