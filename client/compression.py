"""Compression of large bodies before they are sent. Consumers decompress them, also those of RocketMQ.

A body of more than ABOVE_BYTES is compressed if that makes it smaller. The sysFlag of the record says how
(proto/record.py). The sending thread or event loop compresses. For a body of 1 MiB, zlib takes about 20 ms, zstd 8 ms,
and lz4 3 ms.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Final, Literal

from ..proto.errors import ConfigError
from ..proto.extras import pip_install
from ..proto.record import COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD, SYS_COMPRESSED
from .message import Message

Compression = Literal["zlib", "lz4", "zstd"]

#: The levels of the producers of RocketMQ.
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
    """Compresses bodies of more than ABOVE_BYTES with KIND. Any number of threads may share one."""

    def __init__(self, kind: Compression | None, above_bytes: int) -> None:
        self._pack = _packer(kind)
        self._flags = 0 if kind is None else _FLAGS[kind]
        #: Bodies of up to this size are not compressed.
        self.above_bytes: float = float("inf") if kind is None else above_bytes

    def compressed(self, message: Message) -> Message:
        """Return MESSAGE with a compressed body, or unchanged."""
        if len(message.body) <= self.above_bytes or message.sys_flag & SYS_COMPRESSED:
            return message
        body, flags = self.packed(message.body)
        return message._replace(body=body, sys_flag=message.sys_flag | flags) if flags else message

    def packed(self, body: bytes) -> tuple[bytes, int]:
        """Return BODY, compressed if that makes it smaller, and the bits of sysFlag for the compression."""
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
