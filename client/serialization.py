"""From the application's values to the bytes of a message, and back.

    Producer(value_serializer="json").send("orders", {"id": 17}, key="order-17")

    "bytes"    bytes, bytearray, memoryview, as they are (the default for values)
    "str"      text, in UTF-8 (the default for keys, which stay text)
    "json"     what `json.dumps` takes, without spaces, in UTF-8; NaN and infinities are refused: they are no JSON
    a callable `callable(value)`: bytes for a value, text for a key
    an object  `serialize(topic, value)`, and for consumers `deserialize(topic, data)`

What raises, and what returns something else, raises SerializationFailed, which names the topic and the field.

Compresses large bodies before they are sent; consumers undo it by themselves, Apache's as well as ours.

A body of more than ABOVE_BYTES is compressed, and sent so if that made it smaller. sysFlag says how (proto/record.py).
It happens in the thread, or on the loop, that sends: zlib takes some 20 ms for a body of 1 MiB, zstd 8, lz4 3.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Final, Literal, Protocol, TypeAlias

from ..proto.errors import ConfigError, SerializationFailed
from ..proto.extras import pip_install
from ..proto.record import COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD, SYS_COMPRESSED
from .message import Message


class Serializer(Protocol):
    """Makes bytes of values, or text of keys."""

    def serialize(self, topic: str, value: Any, /) -> bytes | str: ...


class Deserializer(Protocol):
    """Makes values of bytes."""

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
    """Return the function of (topic, value) that SERIALIZER names or is; it raises SerializationFailed."""
    return _guarded(_found(serializer, _VALUES, "value_serializer", "serialize"), "value", bytes)


def key_encoder(serializer: KeySerializer) -> Callable[[str, Any], str]:
    """Return the function of (topic, key) that SERIALIZER names or is; it raises SerializationFailed."""
    return _guarded(_found(serializer, _KEYS, "key_serializer", "serialize"), "key", str)


def value_decoder(deserializer: ValueDeserializer) -> Callable[[str, bytes], Any]:
    """Return the function of (topic, body) that DESERIALIZER names or is; it raises SerializationFailed."""
    return _guarded(
        _found(deserializer, _BACK, "value_deserializer", "deserialize"), "value", object
    )


def _found(given: Any, named: dict[str, _Encode], setting: str, method: str) -> _Encode:
    """Return the function that GIVEN, a value of SETTING, stands for; raise ConfigError if there is none."""
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


# ---------------------------------------------------------------- large bodies compressed before they are sent


Compression = Literal["zlib", "lz4", "zstd"]

#: As Apache's producers.
_ZLIB_LEVEL: Final = 5
_ZSTD_LEVEL: Final = 3
_FLAGS: Final[dict[str, int]] = {
    "zlib": SYS_COMPRESSED | COMPRESSION_ZLIB,
    "lz4": SYS_COMPRESSED | COMPRESSION_LZ4,
    "zstd": SYS_COMPRESSED | COMPRESSION_ZSTD,
}
_MODULES: Final = {"lz4": "lz4", "zstd": "zstandard"}


def check_compression(kind: Compression | None) -> None:
    """Raise ConfigError for a KIND that is unknown, or whose library is not installed."""
    if kind is None:
        return
    if kind not in _FLAGS:
        raise ConfigError(
            f"compression is {kind!r}, but must be one of {', '.join(_FLAGS)} or None",
            field="compression",
            value=kind,
        )
    module = _MODULES.get(kind)
    if module is not None and find_spec(module) is None:
        raise ConfigError(
            f"compression is {kind!r}, which needs a library: {pip_install('compression')}",
            field="compression",
            value=kind,
        )


class Compressor:
    """Compresses by KIND what is larger than ABOVE_BYTES. Any number of threads may share one."""

    def __init__(self, kind: Compression | None, above_bytes: int) -> None:
        self._pack = _packer(kind)
        self._flags = 0 if kind is None else _FLAGS[kind]
        #: Bodies up to this many bytes stay as they are.
        self.above_bytes: float = float("inf") if kind is None else above_bytes

    def compressed(self, message: Message) -> Message:
        """Return MESSAGE with a smaller body, or as it is."""
        if len(message.body) <= self.above_bytes or message.sys_flag & SYS_COMPRESSED:
            return message
        body, flags = self.packed(message.body)
        return message._replace(body=body, sys_flag=message.sys_flag | flags) if flags else message

    def packed(self, body: bytes) -> tuple[bytes, int]:
        """Return BODY as it is to be stored, and the bits of sysFlag that say so."""
        if len(body) <= self.above_bytes:
            return body, 0
        smaller = self._pack(body)
        return (smaller, self._flags) if len(smaller) < len(body) else (body, 0)


def _packer(kind: Compression | None) -> Callable[[bytes], bytes]:
    if kind == "lz4":
        import lz4.frame

        pack_lz4: Callable[[bytes], bytes] = lz4.frame.compress
        return pack_lz4
    if kind == "zstd":
        import zstandard

        return lambda body: zstandard.compress(body, _ZSTD_LEVEL)
    return lambda body: zlib.compress(body, _ZLIB_LEVEL)
