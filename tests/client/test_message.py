"""Messages to send: what is taken, what is refused and how it is said."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketmq.client import Message, Queue
from pocketmq.proto.errors import InvalidArgument, InvalidName, MessageTooLarge
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


@given(
    keys=st.lists(words, max_size=3),
    tag=st.none() | words,
    properties=st.dictionaries(words, words, max_size=3),
    level=st.integers(0, 18),
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
        (("or ders", b"x"), InvalidName, r"holds ' '"),
        (("", b"x"), InvalidName, r"empty"),
        (("x" * 128, b"x"), InvalidName, r"127"),
    ],
    ids=["text body", "no body", "empty body", "huge body", "blank in topic", "no topic", "long"],
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
        ({"properties": {"UNIQ_KEY": "x"}}, "producer makes"),
        ({"properties": {"a": 1}}, "write str"),
        ({"properties": {"a": "\x01"}}, "U.0001"),
        ({"properties": {"a": "x" * 33_000}}, "32[0-9]{3}"),
        ({"delay_level": 19}, "1 to 18"),
        ({"delay_level": -1}, "1 to 18"),
        ({"queue": -1}, "count from 0"),
        ({"queue": Queue("other", "broker-a", 0)}, "topic 'other'"),
    ],
)
def test_bad_options_are_refused_with_a_hint(arguments: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        Message("orders", b"x", **arguments)  # type: ignore[arg-type]


def test_repr_does_not_print_the_body() -> None:
    message = Message("orders", b"secret", key="k")

    assert repr(message) == "Message('orders', <6 bytes>, keys=('k',))"
