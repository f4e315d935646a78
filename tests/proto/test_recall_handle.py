"""Recall handles: Apache's, ours, and what is none."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.recall_handle import HANDLE_LENGTH_MAX, decode_handle, encode_handle

#: What Apache's gateway gave (fixture v2/cluster-delay-recall, number 04).
APACHES = (
    "djEgSy1yZWNhbGwgYnJva2VyLWEgMTc5NTIyOTU2MjAwMSAwMUFBQkJDQ0RERUVGRjQ5OUQwQTAxMDdERjAwMDAwMDc2"
)
NAMES = ("K-recall", "broker-a", 1795229562001, "01AABBCCDDEEFF499D0A0107DF00000076")


def _handle(text: str | bytes) -> str:
    data = text if isinstance(text, bytes) else text.encode()
    return base64.urlsafe_b64encode(data).decode()


def test_a_recorded_handle_is_read_and_written() -> None:
    assert tuple(decode_handle(APACHES)) == NAMES
    assert encode_handle(*NAMES) == APACHES


_name = st.text("abcXYZ019_-%|", min_size=1, max_size=60)


@given(_name, _name, st.integers(0, 10**18 - 1), _name)
def test_what_is_written_is_read(topic: str, broker: str, due_ms: int, message_id: str) -> None:
    handle = encode_handle(topic, broker, due_ms, message_id)

    assert tuple(decode_handle(handle)) == (topic, broker, due_ms, message_id)
    assert decode_handle(handle.rstrip("=")) == decode_handle(handle)


@pytest.mark.parametrize(
    ("handle", "problem"),
    [
        ("", "empty"),
        ("nonsense", "not URL-safe base64"),
        ("ä", "not URL-safe base64"),
        ("A", "not URL-safe base64"),
        ("dj E=", "not URL-safe base64"),
        ("dj+/", "not URL-safe base64"),
        (_handle(b"v1 \xff"), "not URL-safe base64"),
        ("A" * (HANDLE_LENGTH_MAX + 1), "characters, the limit is 2048"),
        (_handle("v2 T broker-a 1 ID"), "version is 'v2'"),
        (_handle("v1 T broker-a 1"), "4 words, not 5"),
        (_handle("v1 T broker-a soon ID"), "time is 'soon'"),
        (_handle("v1 T broker-a -5 ID"), "time is '-5'"),
        (_handle("v1 T broker-a ١ ID"), "not a number of milliseconds"),
        (_handle("v1 T broker-a " + "9" * 19 + " ID"), "not a number of milliseconds"),
        (_handle("v1 T/U broker-a 1 ID"), "the topic's name 'T/U'"),
        (_handle("v1 T  1 ID"), "broker's name is empty"),
        (_handle("v1 T broker-a 1 "), "message id is empty"),
    ],
)
def test_what_is_no_handle_is_told_apart(handle: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match="not a recall handle") as caught:
        decode_handle(handle)

    assert problem in caught.value.message
    assert caught.value.details["field"] == "handle"


@given(st.text(max_size=80) | st.binary(max_size=60).map(_handle))
def test_nothing_else_is_raised(handle: str) -> None:
    try:
        decode_handle(handle)
    except InvalidArgument as error:
        assert error.details["field"] == "handle"
