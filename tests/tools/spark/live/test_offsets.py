"""Offsets in options and checkpoints."""

import json

import pytest
from hypothesis import given, strategies as st

from pocketmq.client.queue import Queue
from pocketmq.proto.errors import ConfigError
from pocketmq.tools.spark.live.offsets import (
    EARLIEST,
    OFFSET_MAX,
    RecordMark,
    from_checkpoint,
    from_tree,
    named,
    parse_assignment,
    parse_offsets,
    to_checkpoint,
    to_tree,
)

NAMES = st.text("abz-%_09", min_size=1, max_size=8)
QUEUES = st.builds(Queue, NAMES, NAMES, st.integers(0, 999_999_999))
OFFSETS = st.dictionaries(QUEUES, st.integers(0, OFFSET_MAX), max_size=20)


@given(OFFSETS)
def test_offsets_survive_a_checkpoint(offsets: dict[Queue, int]) -> None:
    text = json.dumps(to_tree(offsets))

    assert parse_offsets(text, "checkpoint") == offsets


MARKS = st.builds(RecordMark, st.integers(0, OFFSET_MAX), st.integers(0, OFFSET_MAX))


@pytest.mark.long
@given(st.dictionaries(QUEUES, st.tuples(st.integers(0, OFFSET_MAX), MARKS | st.none())))
def test_marks_survive_a_checkpoint_beside_the_offsets(
    positions: dict[Queue, tuple[int, RecordMark | None]],
) -> None:
    offsets = {queue: offset for queue, (offset, _) in positions.items()}
    marks = {queue: mark for queue, (_, mark) in positions.items() if mark is not None}

    tree = json.loads(json.dumps(to_checkpoint(offsets, marks)))

    assert from_checkpoint(tree, "checkpoint") == (offsets, marks)
    assert from_checkpoint(to_tree(offsets), "checkpoint") == (offsets, {})


@given(OFFSETS)
def test_the_tree_has_text_as_keys_down_to_numbers(offsets: dict[Queue, int]) -> None:
    for brokers in to_tree(offsets).values():
        for numbers in brokers.values():
            assert all(type(number) is str and type(at) is int for number, at in numbers.items())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused(value: object) -> None:
    try:
        offsets = from_tree(value, "startingOffsets", least=EARLIEST)
    except ConfigError as error:
        assert error.message.startswith("startingOffsets")
    else:
        assert from_tree(to_tree(offsets), "again", least=EARLIEST) == offsets


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ("is not JSON",)),
        ("[1]", ("topic → broker → queue",)),
        ('{"T": 3}', ("startingOffsets.T", "broker → queue")),
        ('{"T": {"a": {"x": 1}}}', ("startingOffsets.T.a", "'x'")),
        ('{"T": {"a": {"0": "1"}}}', ("startingOffsets.T.a.0", "'1'")),
        ('{"T": {"a": {"0": true}}}', ("startingOffsets.T.a.0", "True")),
        ('{"T": {"a": {"0": -3}}}', ("-3", "-2 earliest")),
        ('{"T": {"a": {"0": 9223372036854775808}}}', ("startingOffsets.T.a.0",)),
    ],
    ids=["broken", "list", "number", "queue", "text", "truth", "low", "high"],
)
def test_what_is_no_offset_is_named_with_its_place(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_offsets(text, "startingOffsets", least=EARLIEST)

    for word in words:
        assert word in refusal.value.message


def test_an_assignment_lists_queues_in_order() -> None:
    text = '{"T": {"b": [1, 0, 1], "a": [2]}}'

    assert parse_assignment(text, "assign") == (
        Queue("T", "a", 2),
        Queue("T", "b", 0),
        Queue("T", "b", 1),
    )


@pytest.mark.parametrize(
    "text", ["{}", '{"T": {"a": []}}', '{"T": {"a": 1}}', '{"T": {"a": [-1]}}', '{"T": []}']
)
def test_an_assignment_of_no_queue_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="assign"):
        parse_assignment(text, "assign")


def test_many_queues_are_named_in_part() -> None:
    queues = [Queue("T", "a", number) for number in range(12)]

    assert named(queues, 2) == "T[a:0], T[a:1] and 10 more"
    assert named(queues[:1]) == "T[a:0]"
