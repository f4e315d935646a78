"""Messages to send: what is taken, what is refused and how it is said."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.client import Message, Queue
from pocketmq.client.delivery_time import INSTANT_MAX_MS, INSTANT_MIN_MS
from pocketmq.proto.errors import InvalidArgument, InvalidDelay, InvalidName, MessageTooLarge
from pocketmq.proto.properties import decode_properties
from pocketmq.proto.topics import MESSAGE_SIZE_MAX

words = st.text(
    st.characters(codec="utf-8", exclude_characters=" \x01\x02"), min_size=1, max_size=8
)


def test_topic_and_body_are_enough() -> None:
    message = Message("orders", b"body")

    assert (message.topic, message.body, message.keys, message.tag) == ("orders", b"body", (), None)
    assert message.property_string == b""


def test_key_and_keys_are_kept_in_order() -> None:
    message = Message("orders", b"body", key="a", keys=["b", "c"])

    assert message.keys == ("a", "b", "c")
    assert message.key == "a"
    assert decode_properties(message.property_string) == {"KEYS": "a b c"}


tags = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters="|"),
    min_size=1,
    max_size=8,
).filter(lambda tag: not tag.isspace())


@given(
    keys=st.lists(words, max_size=3),
    tag=st.none() | tags,
    properties=st.dictionaries(words.map("own-".__add__), words, max_size=3),
    level=st.integers(0, 64),
)
def test_properties_are_read_back_as_given(
    keys: list[str], tag: str | None, properties: dict[str, str], level: int
) -> None:
    message = Message("t", b"b", keys=keys, tag=tag, properties=properties, delay_level=level)

    expected = dict(properties)
    if keys:
        expected["KEYS"] = " ".join(keys)
    if tag is not None:
        expected["TAGS"] = tag
    if level:
        expected["DELAY"] = str(level)
    assert decode_properties(message.property_string) == expected


def test_a_body_of_another_bytes_type_is_copied() -> None:
    buffer = bytearray(b"abc")
    message = Message("orders", memoryview(buffer))  # type: ignore[arg-type]
    buffer[0] = 0

    assert message.body == b"abc"


def test_a_message_cannot_be_changed() -> None:
    message = Message("orders", b"body", properties={"a": "1"})

    with pytest.raises(AttributeError):
        message.topic = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        message.properties["a"] = "2"  # type: ignore[index]


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("orders", "text"), InvalidArgument, r"body is str.*encode"),
        (("orders", None), InvalidArgument, r"body is NoneType"),
        (("orders", b""), InvalidArgument, r"body is empty"),
        (("orders", bytes(MESSAGE_SIZE_MAX + 1)), MessageTooLarge, r"4194305 bytes.*4194304"),
        (("or/ders", b"x"), InvalidName, r"contains '/'"),
        (("", b"x"), InvalidName, r"empty"),
        (("x" * 256, b"x"), InvalidName, r"255"),
    ],
    ids=["text body", "no body", "empty body", "huge body", "slash in topic", "no topic", "long"],
)
def test_bad_topic_or_body_is_refused(
    arguments: tuple[str, bytes], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Message(*arguments)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"key": "two words"}, "one word"),
        ({"key": ""}, "one word"),
        ({"keys": "abc"}, "write key='abc'"),
        ({"tag": ""}, "TAGS"),
        ({"properties": {"KEYS": "x"}}, "write key="),
        ({"properties": {"UNIQ_KEY": "x"}}, "producer sets"),
        ({"properties": {"DELAY": "3"}}, "write delay_level="),
        ({"properties": {"TIMER_DELIVER_MS": "3"}}, "write delay=… or deliver_at="),
        ({"properties": {"TIMER_OUT_MS": "3"}}, "write delay=… or deliver_at="),
        ({"properties": {"TRAN_MSG": "true"}}, "producer.transaction"),
        ({"properties": {"PGROUP": "g"}}, "producer.transaction"),
        ({"properties": {"REAL_TOPIC": "t"}}, "broker sets it"),
        ({"properties": {"REAL_QID": "0"}}, "broker sets it"),
        ({"properties": {"RETRY_TOPIC": "t"}}, "broker sets it"),
        ({"properties": {"a": 1}}, "write str"),
        ({"properties": {"a": "\x01"}}, "U.0001"),
        ({"properties": {"a": "x" * 33_000}}, "32[0-9]{3}"),
        ({"delay_level": 65}, "1 to 64"),
        ({"delay_level": -1}, "1 to 64"),
        ({"delay_level": "2h"}, "delay=…"),
        ({"queue": -1}, "start at 0"),
        ({"queue": Queue("other", "broker-a", 0)}, "topic 'other'"),
    ],
)
def test_bad_options_are_refused_with_a_hint(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Message("orders", b"x", **arguments)  # type: ignore[arg-type]


# ------------------------------------------------------------ delivered later

instants = st.integers(INSTANT_MIN_MS, INSTANT_MAX_MS)
zones = st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)


@pytest.mark.parametrize(
    ("delay", "delay_ms"),
    [
        (timedelta(hours=2), 7_200_000),
        (timedelta(microseconds=1), 1),
        (timedelta(milliseconds=5, microseconds=1), 6),
        ("2h30m", 9_000_000),
        ("1ms", 1),
    ],
)
def test_a_delay_is_left_for_the_broker_to_count(delay: timedelta | str, delay_ms: int) -> None:
    message = Message("orders", b"x", delay=delay)

    assert (message.delay_ms, message.deliver_at_ms, message.timed) == (delay_ms, 0, True)
    assert decode_properties(message.property_string) == {"TIMER_DELAY_MS": str(delay_ms)}


@given(instants)
def test_an_instant_in_milliseconds_is_taken_as_it_is(instant_ms: int) -> None:
    message = Message("orders", b"x", key="k", deliver_at=instant_ms)

    assert (message.delay_ms, message.deliver_at_ms, message.timed) == (0, instant_ms, True)
    assert decode_properties(message.property_string) == {
        "KEYS": "k",
        "TIMER_DELIVER_MS": str(instant_ms),
    }


@given(st.datetimes(datetime(1974, 1, 1), datetime(9999, 12, 30), timezones=zones))
def test_a_datetime_is_never_rounded_to_an_earlier_millisecond(instant: datetime) -> None:
    at_ms = Message("orders", b"x", deliver_at=instant).deliver_at_ms

    since = instant - datetime(1970, 1, 1, tzinfo=UTC)
    assert timedelta(milliseconds=at_ms - 1) < since <= timedelta(milliseconds=at_ms)


def test_only_a_time_of_its_own_makes_a_message_timed() -> None:
    assert not Message("orders", b"x").timed
    assert not Message("orders", b"x", delay_level=3).timed


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"delay": timedelta(0)}, InvalidDelay, "Omit it"),
        ({"delay": timedelta(seconds=-1)}, InvalidDelay, "must be positive"),
        ({"delay": "0s"}, InvalidDelay, "Omit it"),
        ({"delay": timedelta(days=40_000)}, InvalidDelay, "three days"),
        ({"delay": "999999999999999d"}, InvalidDelay, "three days"),
        ({"delay": "2 hours"}, InvalidArgument, "write 500ms"),
        ({"delay": 30}, InvalidArgument, "without a unit"),
        ({"deliver_at": datetime(2026, 1, 1)}, InvalidArgument, "astimezone"),
        ({"deliver_at": 1_700_000_000}, InvalidArgument, "unit seconds"),
        ({"deliver_at": 0}, InvalidArgument, "unit seconds"),
        ({"deliver_at": -1}, InvalidArgument, "1973"),
        ({"deliver_at": 1_700_000_000_000_000}, InvalidArgument, "micro- or nanoseconds"),
        ({"deliver_at": 1_700_000_000_000.5}, InvalidArgument, "as an int"),
        ({"deliver_at": "2026-01-01T00:00Z"}, InvalidArgument, "datetime"),
        ({"deliver_at": True}, InvalidArgument, "datetime"),
        ({"delay": "1s", "delay_level": 1}, InvalidArgument, "one of delay_level"),
        ({"delay": "1s", "deliver_at": 1_700_000_000_000}, InvalidArgument, "one of delay_level"),
        ({"delay_level": 1, "deliver_at": 1_700_000_000_000}, InvalidArgument, "one of"),
    ],
)
def test_bad_times_are_refused_with_a_hint(
    arguments: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Message("orders", b"x", **arguments)


def test_repr_tells_when_it_is_to_be_delivered() -> None:
    assert (
        repr(Message("orders", b"x", delay="1s")) == "Message('orders', <1 bytes>, delay_ms=1000)"
    )


def test_repr_does_not_print_the_body() -> None:
    message = Message("orders", b"secret", key="k")

    assert repr(message) == "Message('orders', <6 bytes>, keys=('k',))"


def test_a_message_is_replaced_but_for_what_stays() -> None:
    message = Message(
        "T", b"x", keys=["a", "b"], tag="t", properties={"p": "q"}, delay="90s", sharding_key="s"
    )

    other = message.replace(properties={"p": "r"})
    assert (other.keys, other.tag, other.delay_ms, other.sharding_key) == (
        ("a", "b"),
        "t",
        90_000,
        "s",
    )
    assert dict(other.properties) == {"p": "r"}
    assert message.replace() == message
    assert message.replace(key="c").keys == ("c",)
    later = message.replace(deliver_at=1_800_000_000_000)
    assert (later.delay_ms, later.deliver_at_ms) == (0, 1_800_000_000_000)
    with pytest.raises(InvalidArgument, match="sharding_key="):
        message.replace(properties={"__SHARDINGKEY": "s"})


@pytest.mark.parametrize(
    ("tag", "rule"),
    [
        ("a||b", "contains '|', which separates tags"),
        ("a|b", "contains '|'"),
        (" ", "is blank"),
        ("a\nb", "contains a control character"),
    ],
)
def test_a_tag_that_official_clients_may_not_send_is_refused(tag: str, rule: str) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(rule)):
        Message("T", b"x", tag=tag)


def test_a_tag_may_have_any_letters_that_are_seen_or_have_no_width() -> None:
    for tag in ("a b", "ü", "标签", "a\u200db"):
        assert Message("T", b"x", tag=tag).tag == tag


@pytest.mark.parametrize("priority", [0, 3, 2**31 - 1])
def test_a_priority_is_stored_as_apache_stores_it(priority: int) -> None:
    message = Message("T", b"x", priority=priority)

    assert message.priority == priority
    assert decode_properties(message.property_string) == {"_SYS_MSG_PRIORITY_": str(priority)}
    assert message.placed
    assert f"priority='{priority}'" in repr(message)
    assert message.replace(tag="t").priority == priority
    assert message.replace(priority=None).priority is None


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"priority": -1}, "priority is -1: must be 0 to 2147483647"),
        ({"priority": 2**31}, "priority is 2147483648: must be 0 to 2147483647"),
        ({"priority": "3"}, "priority is '3' (str), but must be a whole number"),
        ({"priority": True}, "priority is True (bool)"),
        ({"priority": 1, "sharding_key": "k"}, "cannot have sharding_key=…: omit one"),
        ({"priority": 0, "sharding_key": "k"}, "cannot have sharding_key=…: omit one"),
        ({"priority": 1, "delay": "1s"}, "cannot have delay=…"),
        ({"priority": 1, "deliver_at": INSTANT_MIN_MS}, "cannot have delay=…"),
        ({"priority": 1, "delay_level": 3}, "cannot have delay=…"),
        ({"properties": {"_SYS_MSG_PRIORITY_": "1"}}, "write priority=…"),
    ],
)
def test_a_priority_out_of_bounds_or_beside_what_it_excludes_is_refused(
    parts: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(says)):
        Message("T", b"x", **parts)
