"""Which way a message takes: levels, instants, what its properties become, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.broker.delay_rules import LATE_MAX_MS, DelayLimits, Part, route, timer_out_ms
from pocketmq.proto.errors import InvalidDelay, MessageTooLarge
from pocketmq.proto.properties import decode_properties
from pocketmq.proto.record import Record, decode_record, encode_record, encode_run
from pocketmq.proto.record_run import parse_run, starts_of
from pocketmq.proto.run import Run
from pocketmq.proto.time_text import format_instant
from pocketmq.proto.topics import PROPERTIES_SIZE_MAX, SCHEDULE_TOPIC, TIMER_TOPIC
from pocketmq.store.config import StoreConfig, apply_apache_settings
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..recorded import recorded_store, settings
from ..runs import BORN, records_of

NOW = 1_700_000_000_500
DAY = 86_400_000
RULES = DelayLimits((1_000, 5_000, 10_000), 1_000, 3 * DAY)


def _run(strings: list[bytes], *, topic: str = "T", queue: int = 2, born_ms: int = NOW - 10) -> Run:
    messages = [(b"body %d" % number, string) for number, string in enumerate(strings)]
    data, sizes = encode_run(
        topic, queue, messages, born_timestamp_ms=born_ms, born_host=BORN, flag=7
    )
    columns = parse_run(data, starts_of(sizes))
    return Run(topic=topic, queue=queue, records=data, columns=columns)


def _string(**properties: object) -> bytes:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def _records(part: Part) -> list[Record]:
    return [decode_record(part.run.records, start) for start in part.run.columns.starts.tolist()]


def _strings(part: Part) -> list[bytes]:
    columns = part.run.columns
    places = zip(columns.properties_start.tolist(), columns.properties_size.tolist(), strict=True)
    return [bytes(part.run.records[start : start + size]) for start, size in places]


def _only(**properties: object) -> Part:
    (part,) = route(_run([_string(**properties)]), RULES, NOW)
    return part


# --- what each way makes of a record


@pytest.mark.parametrize("count", [1, 20])
def test_a_run_without_delays_is_left_as_it_is(count: int) -> None:
    run = _run([_string(KEYS="k", TAGS="DELAY")] * count)

    (part,) = route(run, RULES, NOW)

    assert part.run is run
    assert part.rows.tolist() == list(range(count))
    assert part.due_ms is None


def test_a_level_waits_in_its_queue() -> None:
    part = _only(A="1", DELAY="2", B="2")

    assert (part.run.topic, part.run.queue) == (SCHEDULE_TOPIC, 1)
    assert part.by_level
    assert part.due_ms is not None
    assert part.due_ms.tolist() == [NOW + 5_000]
    (record,) = _records(part)
    assert (record.topic, record.queue_id, record.body, record.flag) == (
        SCHEDULE_TOPIC,
        1,
        b"body 0",
        7,
    )
    assert _strings(part) == [_string(A="1", DELAY="2", B="2", REAL_TOPIC="T", REAL_QID="2")]


def test_a_level_wins_over_instants_and_takes_them_away() -> None:
    part = _only(
        TIMER_DELIVER_MS="nonsense",
        DELAY="1",
        TIMER_DELAY_SEC="5",
        KEYS="k",
        TIMER_DELAY_MS="-1",
    )

    assert _strings(part) == [_string(DELAY="1", KEYS="k", REAL_TOPIC="T", REAL_QID="2")]


def test_a_level_above_the_highest_means_the_highest() -> None:
    part = _only(DELAY="99", KEYS="k")

    assert part.run.queue == 2
    assert _strings(part) == [_string(KEYS="k", REAL_TOPIC="T", REAL_QID="2", DELAY="3")]


@pytest.mark.parametrize(
    ("name", "value", "due_ms"),
    [
        ("TIMER_DELAY_SEC", 7, NOW + 7_000),
        ("TIMER_DELAY_MS", 7, NOW + 7),
        ("TIMER_DELIVER_MS", NOW + 7, NOW + 7),
        ("TIMER_DELIVER_MS", NOW + 3 * DAY, NOW + 3 * DAY),
        ("TIMER_DELAY_MS", 3 * DAY, NOW + 3 * DAY),
    ],
)
def test_an_instant_waits_in_the_timer_topic(name: str, value: int, due_ms: int) -> None:
    part = _only(KEYS="k", **{name: value})

    assert (part.run.topic, part.run.queue, part.by_level) == (TIMER_TOPIC, 0, False)
    assert part.due_ms is not None
    assert part.due_ms.tolist() == [due_ms]
    (record,) = _records(part)
    assert dict(record.properties) == {
        "KEYS": "k",
        name: str(value),
        "TIMER_OUT_MS": str((due_ms - 1) // 1000 * 1000),
        "REAL_TOPIC": "T",
        "REAL_QID": "2",
        "TIMER_DELIVER_MS": str(due_ms),
    }


@pytest.mark.parametrize(
    ("due_ms", "out_ms"), [(5_000, 4_000), (5_001, 5_000), (5_999, 5_000), (6_000, 5_000)]
)
def test_a_whole_second_loses_one(due_ms: int, out_ms: int) -> None:
    assert timer_out_ms(due_ms, 1_000) == out_ms


def test_the_first_of_several_instants_counts() -> None:
    part = _only(TIMER_DELIVER_MS=NOW + 1, TIMER_DELAY_MS=2, TIMER_DELAY_SEC=3)

    assert part.due_ms is not None
    assert part.due_ms.tolist() == [NOW + 3_000]
    assert decode_properties(_strings(part)[0])["TIMER_DELIVER_MS"] == str(NOW + 3_000)


def test_what_stood_there_is_replaced_and_nothing_doubled() -> None:
    stale = _string(REAL_TOPIC="old", X="1", REAL_QID="9", REAL_TOPIC2="y")
    string = stale + stale + _string(TIMER_DELIVER_MS=NOW + 1, TIMER_DELAY_MS=5)

    (part,) = route(_run([string]), RULES, NOW)

    assert _strings(part) == [
        _string(X="1", REAL_TOPIC2="y")
        + _string(X="1", REAL_TOPIC2="y", TIMER_DELAY_MS=5)
        + _string(TIMER_OUT_MS=NOW // 1000 * 1000, REAL_TOPIC="T", REAL_QID="2")
        + _string(TIMER_DELIVER_MS=NOW + 5)
    ]


def test_an_older_clients_string_without_its_last_end_is_completed() -> None:
    (part,) = route(_run([b"KEYS\x01k\x02DELAY\x011"]), RULES, NOW)

    assert _strings(part) == [_string(KEYS="k", DELAY="1", REAL_TOPIC="T", REAL_QID="2")]


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_OUT_MS": NOW, "TIMER_DELAY_MS": 5},
        {"DELAY": 0},
        {"DELAY": -3},
        {"TIMER_DELAY_MS": 0},
        {"TIMER_DELAY_SEC": 0, "TIMER_DELAY_MS": 7},
        {"TIMER_DELIVER_MS": NOW},
        {"TIMER_DELIVER_MS": NOW - 9},
    ],
    ids=str,
)
def test_what_need_not_wait_is_stored_as_it_is(properties: dict[str, object]) -> None:
    run = _run([_string(**properties)])

    (part,) = route(run, RULES, NOW)

    assert part.run is run
    assert part.due_ms is None


def test_in_the_timer_topic_no_instant_counts() -> None:
    run = _run([_string(TIMER_DELAY_MS=5)], topic=TIMER_TOPIC, queue=0)

    (part,) = route(run, RULES, NOW)

    assert part.run is run


# --- what is refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DELAY", "soon"),
        ("DELAY", "1.5"),
        ("DELAY", "+1"),
        ("DELAY", "１"),
        ("TIMER_DELAY_SEC", "-1"),
        ("TIMER_DELAY_SEC", "259201"),
        ("TIMER_DELAY_SEC", "9" * 18),
        ("TIMER_DELAY_MS", "-1"),
        ("TIMER_DELAY_MS", "--1"),
        ("TIMER_DELAY_MS", "9" * 40),
        ("TIMER_DELAY_MS", str(3 * DAY + 1)),
        ("TIMER_DELIVER_MS", str(NOW + 3 * DAY + 1)),
        ("TIMER_DELIVER_MS", str(NOW - 10)),
        ("TIMER_DELIVER_MS", "0"),
        ("TIMER_DELIVER_MS", "-5"),
        ("TIMER_DELIVER_MS", "tomorrow"),
    ],
)
def test_a_delay_that_makes_no_sense_is_refused_by_name(name: str, value: str) -> None:
    run = _run([_string(KEYS="k"), _string(**{name: value})])

    with pytest.raises(InvalidDelay) as caught:
        route(run, RULES, NOW)

    assert caught.value.details["field"] == name
    assert caught.value.details["index"] == "1"
    assert caught.value.details["value"] in (value, value[:40])


def test_a_time_more_than_a_minute_ago_is_refused_even_if_it_once_was_ahead() -> None:
    on_the_way = _run([_string(TIMER_DELIVER_MS=NOW - LATE_MAX_MS)], born_ms=NOW - DAY)
    too_long = _run([_string(TIMER_DELIVER_MS=NOW - LATE_MAX_MS - 1)], born_ms=NOW - DAY)

    assert route(on_the_way, RULES, NOW)[0].due_ms is None
    with pytest.raises(InvalidDelay, match="has passed"):
        route(too_long, RULES, NOW)


def test_a_sender_whose_clock_is_ahead_may_give_a_time_that_is_ahead_here() -> None:
    """Its record was born, by its own clock, after the time that it asks for; here that time is to come."""
    run = _run([_string(TIMER_DELIVER_MS=NOW + 5_000)], born_ms=NOW + 3_600_000)

    (part,) = route(run, RULES, NOW)

    assert part.due_ms is not None
    assert part.due_ms.tolist() == [NOW + 5_000]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"TIMER_DELAY_SEC": 4 * DAY // 1000},
            "delay 4d is too long: the limit is 3d (broker.delay_max_ms)",
        ),
        (
            {"TIMER_DELIVER_MS": NOW + 4 * DAY},
            f"delivery time {format_instant(NOW + 4 * DAY)} is too far ahead:"
            " the limit is 3d (broker.delay_max_ms)",
        ),
        (
            {"TIMER_DELIVER_MS": NOW - DAY},
            f"delivery time {format_instant(NOW - DAY)} has passed, it is {format_instant(NOW)}"
            " at the broker. Use a later time, or none",
        ),
    ],
)
def test_a_refusal_is_told_in_times_that_people_read(asked: dict[str, int], sentence: str) -> None:
    with pytest.raises(InvalidDelay) as alone:
        route(_run([_string(**asked)]), RULES, NOW)
    with pytest.raises(InvalidDelay) as second:
        route(_run([b"", _string(**asked)]), RULES, NOW)

    assert alone.value.message == sentence
    assert second.value.message == f"record 1 of the batch: {sentence}"


def test_a_time_that_is_past_is_now_where_that_is_asked_for() -> None:
    run = _run([_string(TIMER_DELIVER_MS=5), _string(TIMER_DELIVER_MS=-5)])

    (part,) = route(run, RULES, NOW, past="now")

    assert part.due_ms is None
    with pytest.raises(InvalidDelay, match="the limit is"):
        route(_run([_string(TIMER_DELIVER_MS=NOW + 4 * DAY)]), RULES, NOW, past="now")


def test_properties_that_outgrow_their_field_are_refused() -> None:
    filler = _string(FILL="x" * (PROPERTIES_SIZE_MAX - 20))

    with pytest.raises(MessageTooLarge):
        route(_run([filler + _string(DELAY=1)]), RULES, NOW)


# --- against a model, and against Apache


@dataclass
class Way:
    topic: str
    queue: int
    due_ms: int | None
    properties: dict[str, str]


def _model(properties: dict[str, str]) -> Way | None:
    """Say where a message for T/2 goes; None: it is refused."""
    kept = dict(properties)
    try:
        level = int(kept.get("DELAY", "0"))
    except ValueError:
        return None
    if level > 0:
        for name in ("TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"):
            kept.pop(name, None)
        if level > 3:
            kept["DELAY"] = "3"
        queue = min(level, 3) - 1
        kept |= {"REAL_TOPIC": "T", "REAL_QID": "2"}
        return Way(SCHEDULE_TOPIC, queue, NOW + RULES.levels_ms[queue], kept)
    return _model_of_instants(kept)


def _model_of_instants(kept: dict[str, str]) -> Way | None:
    prompt = Way("T", 2, None, kept)
    if "TIMER_OUT_MS" in kept:
        return prompt
    for name, unit in (("TIMER_DELAY_SEC", 1000), ("TIMER_DELAY_MS", 1)):
        if name in kept:
            delay_ms = int(kept[name]) * unit
            if not 0 <= delay_ms <= RULES.delay_max_ms:
                return None
            return _timed(kept | {"TIMER_DELIVER_MS": str(NOW + delay_ms)}) if delay_ms else prompt
    if "TIMER_DELIVER_MS" not in kept:
        return prompt
    due_ms = int(kept["TIMER_DELIVER_MS"])
    if due_ms <= NOW - 10 or due_ms > NOW + RULES.delay_max_ms:
        return None
    return _timed(kept) if due_ms > NOW else prompt


def _timed(properties: dict[str, str]) -> Way:
    due_ms = int(properties["TIMER_DELIVER_MS"])
    out_ms = due_ms // 1000 * 1000 if due_ms % 1000 else due_ms - 1000
    added = {"TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": "T", "REAL_QID": "2"}
    return Way(TIMER_TOPIC, 0, due_ms, properties | added)


_near = st.integers(-20, 4 * DAY) | st.sampled_from([-10, -9, 0, 1, 500, 3 * DAY, 3 * DAY + 1])
_properties = st.fixed_dictionaries(
    {},
    optional={
        "KEYS": st.sampled_from(["a", "bb"]),
        "DELAY": st.sampled_from(["-1", "0", "1", "2", "3", "4", "x"]),
        "TIMER_DELAY_SEC": st.sampled_from(["-1", "0", "3", "300000"]),
        "REAL_TOPIC": st.just("stale"),
        "TIMER_DELAY_MS": _near.map(str),
        "TIMER_OUT_MS": st.just("7"),
        "TIMER_DELIVER_MS": _near.map(lambda near: str(NOW + near)),
    },
)


@given(st.lists(_properties, min_size=1, max_size=12), st.integers(1, 4))
def test_division_is_that_of_the_model(messages: list[dict[str, str]], times: int) -> None:
    messages = messages * times
    run = _run([_string(**properties) for properties in messages])
    wanted = [_model(properties) for properties in messages]

    if None in wanted:
        with pytest.raises(InvalidDelay):
            route(run, RULES, NOW)
        return
    parts = route(run, RULES, NOW)

    rows = np.concatenate([part.rows for part in parts]).tolist()
    assert sorted(rows) == list(range(len(messages)))
    for part in parts:
        assert (np.diff(part.rows) > 0).all(), "the order of the run"
        assert part.run.columns.well_formed.all()
        due_ms = [None] * len(part.rows) if part.due_ms is None else part.due_ms.tolist()
        for row, due, record in zip(part.rows.tolist(), due_ms, _records(part), strict=True):
            found = Way(record.topic, record.queue_id, due, dict(record.properties))
            assert found == wanted[row]
            assert (part.run.topic, part.run.queue) == (record.topic, record.queue_id)
            assert record.body == b"body %d" % row


_BROKERS = {"TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID"}


@pytest.mark.long
def test_what_apache_stored_for_later_is_what_we_store(tmp_path: Path) -> None:
    config = StoreConfig(path=str(recorded_store("delays", tmp_path / "s")))
    config = apply_apache_settings(config, settings("delays"))
    store = MessageStore.open(config, disk=OsDisk(), now_ms=lambda: NOW, read_only=True)
    waiting = [
        record
        for topic, queue in store.queue_names()
        if topic in (SCHEDULE_TOPIC, TIMER_TOPIC)
        for record in records_of(store, topic, queue)
        if "TIMER_DEL_UNIQKEY" not in record.properties
    ]
    store.close()
    rules = DelayLimits(config.delay_levels_ms, config.timer_precision_ms, 3 * DAY)
    assert len(waiting) > 30

    for stored in waiting:
        theirs = dict(stored.properties)
        topic, queue = theirs["REAL_TOPIC"], int(theirs["REAL_QID"])
        asked = {name: value for name, value in theirs.items() if name not in _BROKERS}
        sent = encode_record(replace(stored, topic=topic, queue_id=queue, properties=asked))
        run = Run(
            topic=topic,
            queue=queue,
            records=sent,
            columns=parse_run(sent, starts_of([len(sent)])),
        )
        # Apache worked out a delay some milliseconds before it stored the message.
        parts = [route(run, rules, stored.store_timestamp_ms - late)[0] for late in range(120)]
        ours = [_records(part)[0] for part in parts]

        by_delay = {"TIMER_DELAY_MS", "TIMER_DELAY_SEC"} & theirs.keys()
        added = {"TIMER_DELIVER_MS"} if by_delay else set()
        same = [
            {name: value for name, value in record.properties.items() if name not in added}
            for record in ours
        ]
        assert theirs in same
        assert (ours[0].topic, ours[0].queue_id) == (stored.topic, stored.queue_id)
        assert (ours[0].body, ours[0].born_timestamp_ms) == (stored.body, stored.born_timestamp_ms)
