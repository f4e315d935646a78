"""The remoting command of Apache RocketMQ: one request or answer, as a frame.

    int32   length           of all that follows
    uint32  kind << 24 | n   kind of the header, 0 JSON, 1 ROCKETMQ; n its length
    n bytes header
    …       body             the rest

A JSON header has the keys code, language, version, opaque, flag, remark, extFields (strings by name) and
serializeTypeCurrentRPC. A ROCKETMQ header is

    int16 code, uint8 language, int16 version, int32 opaque, int32 flag,
    int32 length and UTF-8 of the remark, int32 length of the fields,
    and of each field int16 length, name, int32 length, value

An answer has the request's `opaque` and kind of header. Errors are ValueError, one sentence. Source: remoting.md §1.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from .codes import SUCCESS

#: Apache RocketMQ's brokers refuse larger frames by default.
REQUEST_MAX: Final = 16 << 20
#: Larger headers of received frames are refused. Properties of a message, 32 KiB, may take six times as much in JSON.
HEADER_SIZE_MAX: Final = 1 << 20
_FIELDS_MAX: Final = 1_000
#: The RocketMQ version in each command: 5.5.0.
VERSION: Final = 513

_ANSWER: Final = 1
#: The flag of a request that wants no answer.
ONE_WAY: Final = 2
_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hBhii")
_NAME: Final = struct.Struct(">h")
_JSON_KIND, _ROCKETMQ_KIND = 0, 1
#: By the number in a ROCKETMQ header.
_LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
)  # fmt: skip
#: Made once: `json.dumps` would make an encoder for each call.
_to_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_HEADER_MAX: Final = (1 << 24) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotingCommand:
    """One request, or the answer to one. In an answer, CODE is its result (0 is success) and REMARK the reason."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    version: int = VERSION
    language: str = "PYTHON"
    #: Is the header JSON? An answer has the kind of header of its request.
    is_json: bool = True

    @property
    def is_answer(self) -> bool:
        return bool(self.flag & _ANSWER)

    @property
    def wants_answer(self) -> bool:
        """Is it a request that requires an answer?"""
        return not self.flag & (_ANSWER | ONE_WAY)

    def answer(
        self,
        body: bytes = b"",
        *,
        code: int = SUCCESS,
        remark: str = "",
        fields: Mapping[str, str] | None = None,
    ) -> RemotingCommand:
        """Return the answer to this request."""
        return RemotingCommand(
            code=code,
            opaque=self.opaque,
            flag=_ANSWER,
            remark=remark,
            fields=fields or {},
            body=body,
            is_json=self.is_json,
        )


def encode(command: RemotingCommand) -> bytes:
    """Return the complete frame of COMMAND."""
    header = _json_header(command) if command.is_json else _rocketmq_header(command)
    if len(header) > _HEADER_MAX:
        raise ValueError(f"the header has {len(header):,} bytes, the limit is {_HEADER_MAX:,}")
    kind = _JSON_KIND if command.is_json else _ROCKETMQ_KIND
    size = _LENGTH.size + len(header) + len(command.body)
    return b"".join(
        (_LENGTH.pack(size), _LENGTH.pack(kind << 24 | len(header)), header, command.body)
    )


def _json_header(command: RemotingCommand) -> bytes:
    head: dict[str, object] = {
        "code": command.code,
        "extFields": dict(command.fields),
        "flag": command.flag,
        "language": command.language,
        "opaque": command.opaque,
        "remark": command.remark,
        "serializeTypeCurrentRPC": "JSON",
        "version": command.version,
    }
    for name in ("extFields", "remark"):
        if not head[name]:
            del head[name]
    return _to_json(head).encode("utf-8", "replace")


def _rocketmq_header(command: RemotingCommand) -> bytes:
    remark = command.remark.encode("utf-8", "replace")
    pairs = [
        (name.encode("utf-8", "replace"), value.encode("utf-8", "replace"))
        for name, value in command.fields.items()
    ]
    fields = b"".join(
        part
        for name, value in pairs
        for part in (_NAME.pack(len(name)), name, _LENGTH.pack(len(value)), value)
    )
    language = _LANGUAGES.index(command.language if command.language in _LANGUAGES else "OTHER")
    head = _HEAD.pack(command.code, language, command.version, command.opaque, command.flag)
    return b"".join((head, _LENGTH.pack(len(remark)), remark, _LENGTH.pack(len(fields)), fields))


def decode(frame: bytes) -> RemotingCommand:
    """Return the command in FRAME, the bytes after the frame's length."""
    if len(frame) < _LENGTH.size:
        raise ValueError(f"a frame of {len(frame)} bytes is too short for a header length")
    (word,) = _LENGTH.unpack_from(frame)
    kind, size = word >> 24, word & _HEADER_MAX
    end = _LENGTH.size + size
    if size > HEADER_SIZE_MAX:
        raise ValueError(f"a header of {size:,} bytes, the limit is {HEADER_SIZE_MAX:,}")
    if end > len(frame):
        raise ValueError(f"a header of {size:,} bytes does not fit a frame of {len(frame):,}")
    header, body = frame[_LENGTH.size : end], frame[end:]
    if kind == _JSON_KIND:
        return _of_json(header, body)
    if kind == _ROCKETMQ_KIND:
        return _of_rocketmq(header, body)
    raise ValueError(f"a header of kind {kind}: only JSON (0) and ROCKETMQ (1) are known")


def _of_json(header: bytes, body: bytes) -> RemotingCommand:
    try:
        head = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the header is not JSON: {error}") from None
    if not isinstance(head, dict):
        raise ValueError("the header is not a JSON object")
    fields = head.get("extFields") or {}
    if not isinstance(fields, dict):
        raise ValueError("extFields is not a JSON object")
    return RemotingCommand(
        code=_int(head, "code"),
        opaque=_int(head, "opaque"),
        flag=_int(head, "flag"),
        remark=_text(head.get("remark") or ""),
        fields={name: _text(value) for name, value in fields.items() if value is not None},
        body=body,
        version=_int(head, "version"),
        language=_text(head.get("language") or "OTHER"),
    )


def _text(value: Any) -> str:
    """Return VALUE of a field as Java writes it: clients in other languages may send a number or a boolean."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    # JSON may have half of a surrogate pair, which no other part can encode.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _int(head: dict[str, object], name: str) -> int:
    value = head.get(name, 0)
    if type(value) is not int or not -(2**31) <= value < 2**31:
        raise ValueError(f"{name} is {value!r:.40}, not a number of 32 bits")
    return value


def _of_rocketmq(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, version, opaque, flag = _HEAD.unpack_from(header)
        remark, at = _piece(header, _HEAD.size, _LENGTH)
        packed, _ = _piece(header, at, _LENGTH)
        fields: dict[str, str] = {}
        at = 0
        while at < len(packed):
            if len(fields) == _FIELDS_MAX:
                raise ValueError(f"the header has more than {_FIELDS_MAX:,} fields")
            name, at = _piece(packed, at, _NAME)
            value, at = _piece(packed, at, _LENGTH)
            fields[name.decode()] = value.decode()
        return RemotingCommand(
            code=code,
            opaque=opaque,
            flag=flag,
            remark=remark.decode(),
            fields=fields,
            body=body,
            version=version,
            language=_LANGUAGES[language] if language < len(_LANGUAGES) else "OTHER",
            is_json=False,
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise ValueError(f"the header is not well formed: {error}") from None


def _piece(data: bytes, at: int, length: struct.Struct) -> tuple[bytes, int]:
    """Return the bytes at AT, whose LENGTH precedes them, and where they end."""
    (size,) = length.unpack_from(data, at)
    begin = at + length.size
    if size < 0 or begin + size > len(data):
        raise struct.error(f"{size} bytes at {begin} of {len(data)}")
    return data[begin : begin + size], begin + size
