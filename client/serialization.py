"""Serialization: from the values of an application to the bytes of a message, and back.

    Producer(value_serializer="json").send("orders", {"id": 17}, key="order-17")

    "bytes"    bytes, bytearray or memoryview, unchanged (the default for values)
    "str"      text in UTF-8 (the default for keys, which stay text)
    "json"     values for `json.dumps`, without spaces, in UTF-8; NaN and infinities are refused, because JSON has none
    a callable `callable(value)`: bytes for a value, text for a key
    an object  `serialize(topic, value)`, and for consumers `deserialize(topic, data)`

If a serializer raises, or returns another type, SerializationFailed is raised. It names the topic and the field.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, TypeAlias

from ..proto.errors import ConfigError, SerializationFailed


class Serializer(Protocol):
    """Converts values to bytes, or keys to text."""

    def serialize(self, topic: str, value: Any, /) -> bytes | str: ...


class Deserializer(Protocol):
    """Converts bytes to values."""

    def deserialize(self, topic: str, data: bytes, /) -> Any: ...


Format = Literal["bytes", "str", "json"]
ValueSerializer: TypeAlias = Format | Callable[[Any], bytes] | Serializer
KeySerializer: TypeAlias = Literal["str"] | Callable[[Any], str] | Serializer
ValueDeserializer: TypeAlias = Format | Callable[[bytes], Any] | Deserializer

_Encode: TypeAlias = Callable[[str, Any], Any]


def _bytes(topic: str, value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(
            f'{type(value).__name__} is not bytes: encode it, or set a serializer, like value_serializer="json"'
        )
    return bytes(value)


def _text(topic: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is not text: write str(…), or set a serializer")
    return value


def _utf8(topic: str, value: Any) -> bytes:
    return _text(topic, value).encode()


def _json(topic: str, value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode()


_VALUES: Final[dict[str, _Encode]] = {"bytes": _bytes, "str": _utf8, "json": _json}
_KEYS: Final[dict[str, _Encode]] = {"str": _text}
_BACK: Final[dict[str, _Encode]] = {
    "bytes": lambda topic, data: data,
    "str": lambda topic, data: data.decode(),
    "json": lambda topic, data: json.loads(data),
}


def value_encoder(serializer: ValueSerializer) -> Callable[[str, Any], bytes]:
    """Return a function of (topic, value) for SERIALIZER. The function raises SerializationFailed."""
    return _guarded(_found(serializer, _VALUES, "value_serializer", "serialize"), "value", bytes)


def key_encoder(serializer: KeySerializer) -> Callable[[str, Any], str]:
    """Return a function of (topic, key) for SERIALIZER. The function raises SerializationFailed."""
    return _guarded(_found(serializer, _KEYS, "key_serializer", "serialize"), "key", str)


def value_decoder(deserializer: ValueDeserializer) -> Callable[[str, bytes], Any]:
    """Return a function of (topic, body) for DESERIALIZER. The function raises SerializationFailed."""
    return _guarded(
        _found(deserializer, _BACK, "value_deserializer", "deserialize"), "value", object
    )


def _found(given: Any, named: dict[str, _Encode], setting: str, method: str) -> _Encode:
    """Return the function for GIVEN, the value of SETTING. Raises ConfigError if it is not valid."""
    if isinstance(given, str) and given in named:
        return named[given]
    own = getattr(given, method, None)
    if callable(own) and not isinstance(given, str):
        return own  # type: ignore[no-any-return]  # the application's
    if callable(given):
        return lambda topic, value: given(value)
    known = ", ".join(f'"{name}"' for name in named)
    raise ConfigError(
        f"{setting} is {given!r}, but must be one of {known}, a callable, or an object with {method}(topic, value)",
        field=setting,
        value=given,
    )


def _guarded(function: _Encode, field: str, wanted: type) -> _Encode:
    def call(topic: str, value: Any) -> Any:
        try:
            result = function(topic, value)
        except Exception as error:  # The application's function may raise anything.
            raise SerializationFailed(
                f"the {field} of a message of topic {topic!r} is not serializable: {error}",
                topic=topic,
                field=field,
            ) from error
        if not isinstance(result, wanted):
            raise SerializationFailed(
                f"the serializer of {field}s returned {type(result).__name__} for topic {topic!r}, but must return"
                f" {wanted.__name__}",
                topic=topic,
                field=field,
            )
        return result

    return call
