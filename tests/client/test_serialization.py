"""Serializers: what they take, what they make, and what an error says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.client.config import ProducerConfig
from pocketmq.client.serialization import key_encoder, value_decoder, value_encoder
from pocketmq.proto.errors import ConfigError, SerializationFailed

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    # Lone surrogates have no UTF-8.
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("abc"), inner),
)


class Reversing:
    def serialize(self, topic: str, value: str) -> bytes:
        return f"{topic}:{value[::-1]}".encode()

    def deserialize(self, topic: str, data: bytes) -> str:
        return data.decode().removeprefix(f"{topic}:")[::-1]


@pytest.mark.parametrize(
    ("serializer", "value", "data"),
    [
        ("bytes", b"abc", b"abc"),
        ("bytes", bytearray(b"abc"), b"abc"),
        ("bytes", memoryview(b"abc"), b"abc"),
        ("str", "Äpfel", b"\xc3\x84pfel"),
        ("json", {"a": [1, None], "b": "ä"}, '{"a":[1,null],"b":"ä"}'.encode()),
        ("json", None, b"null"),
        (str.encode, "abc", b"abc"),
        (Reversing(), "abc", b"orders:cba"),
    ],
)
def test_values_become_bytes(serializer: Any, value: Any, data: bytes) -> None:
    assert value_encoder(serializer)("orders", value) == data


@pytest.mark.parametrize(
    ("serializer", "value", "says"),
    [
        ("bytes", "text", 'str is not bytes.*value_serializer="json"'),
        ("str", b"bytes", "bytes is not text"),
        ("str", "\udc80", "surrogates not allowed"),
        ("json", {1, 2}, "set is not JSON serializable"),
        ("json", float("nan"), "not JSON compliant"),
        (lambda value: value / 0, 1, "division by zero"),
        (lambda value: "text", 1, "returned str .*must return bytes"),
    ],
)
def test_what_is_not_serializable_names_topic_and_field(
    serializer: Any, value: Any, says: str
) -> None:
    with pytest.raises(SerializationFailed, match=says) as caught:
        value_encoder(serializer)("orders", value)

    assert "'orders'" in caught.value.message
    assert caught.value.details == {"topic": "orders", "field": "value"}


def test_keys_become_text() -> None:
    assert key_encoder("str")("orders", "k") == "k"
    assert key_encoder(str)("orders", 17) == "17"
    with pytest.raises(SerializationFailed, match=r"the key .*'orders'.*int is not text") as caught:
        key_encoder("str")("orders", 17)
    assert caught.value.details["field"] == "key"
    with pytest.raises(SerializationFailed, match=r"returned int .*must return str"):
        key_encoder(int)("orders", "17")  # type: ignore[arg-type]


@pytest.mark.slow
@given(JSON)
def test_json_comes_back_as_it_was(value: Any) -> None:
    assert value_decoder("json")("orders", value_encoder("json")("orders", value)) == value


@pytest.mark.parametrize(
    ("deserializer", "data", "value"),
    [
        ("bytes", b"abc", b"abc"),
        ("str", b"\xc3\x84pfel", "Äpfel"),
        (bytes.decode, b"abc", "abc"),
        (Reversing(), b"orders:cba", "abc"),
    ],
)
def test_bytes_become_values(deserializer: Any, data: bytes, value: Any) -> None:
    assert value_decoder(deserializer)("orders", data) == value


@pytest.mark.parametrize("deserializer", ["str", "json"])
def test_bytes_that_are_no_value_are_told(deserializer: Any) -> None:
    with pytest.raises(SerializationFailed, match="'orders'"):
        value_decoder(deserializer)("orders", b"\xff")


@pytest.mark.parametrize(
    "settings",
    [
        {"value_serializer": "xml"},
        {"value_serializer": None},
        {"key_serializer": "json"},
        {"key_serializer": 3},
    ],
)
def test_what_is_no_serializer_is_refused(settings: dict[str, Any]) -> None:
    (name,) = settings

    with pytest.raises(ConfigError, match=f"{name} is .*a callable, or an object with serialize"):
        ProducerConfig(**settings)
