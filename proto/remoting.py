"""The remoting command of Apache RocketMQ: one request or answer as a frame.

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

A TCP connection that carries remoting commands, from either end.

    async with await RemotingClient.connect("127.0.0.1:10911") as master:
        answer = await master.call(RequestCode.GET_ALL_TOPIC_CONFIG)

A client asks one thing at a time. In plaintext, and without an account: brokers that want either refuse or close.

The wire by which a slave of Apache RocketMQ takes its master's log: frames and reports, both ways.

Classic. The slave says, in 8 bytes each, where its log ends, first to begin and then after what it took. The master
sends frames of raw bytes, and one without bytes as a heartbeat:

    slave   i64  end of its log
    master  i64  offset of the first byte;  i32 size, 0: heartbeat;  bytes

Auto-switch, of controller mode, has a handshake first, and epochs:

    slave   i32  1;  i16  1: begin with the newest file;  i16  1: learner;  i64  broker id
    master  i32  1;  i32  size of the entries;  i64 end of its log;  i32 last epoch;  per entry i32 epoch, i64 start
    slave   i32  2;  i64  end of its log
    master  i32  2;  i32  size;  i64 offset;  i32 epoch;  i64 its start;  i64 confirm offset;  bytes

Frames may cut records anywhere, and lie in one file. All integers are big-endian and signed. What a peer sends is
judged: a size or a place that cannot be is a ValueError, and nothing is kept beyond one frame. Pure: bytes go in,
frames come out. Source: replication.md §2 and §4.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final, NamedTuple, Self

from .errors import ConnectFailed, ConnectionLost, RequestTimeout, Unsupported

#: A frame of more is refused by Apache's brokers, unless they were told otherwise.
REQUEST_MAX: Final = 16 << 20
#: The release that a command says it speaks: 5.5.0.
VERSION: Final = 513
SUCCESS: Final = 0
NOT_SUPPORTED: Final = 3

_ANSWER: Final = 1
_ONE_WAY: Final = 2
_LENGTH: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hBhii")
_NAME: Final = struct.Struct(">h")
_JSON_KIND, _ROCKETMQ_KIND = 0, 1
#: By the number that a ROCKETMQ header has for them.
_LANGUAGES: Final = (
    "JAVA", "CPP", "DOTNET", "PYTHON", "DELPHI", "ERLANG", "RUBY", "OTHER", "HTTP", "GO", "PHP", "OMS", "RUST",
    "NODE_JS",
)  # fmt: skip
_HEADER_MAX: Final = (1 << 24) - 1


class RequestCode(IntEnum):
    """The requests of replication, and those that tell what a broker is."""

    GET_ALL_TOPIC_CONFIG = 21
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    VIEW_MESSAGE_BY_ID = 33
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    GET_TIMER_CHECK_POINT = 60
    GET_TIMER_METRICS = 61
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_BROKER_CLUSTER_INFO = 106
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_ALL_MESSAGE_REQUEST_MODE = 402


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotingCommand:
    """One request, or the answer to one: then CODE says what became of it, 0 success, and REMARK why not."""

    code: int
    opaque: int = 0
    flag: int = 0
    remark: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    version: int = VERSION
    language: str = "PYTHON"
    #: Is the header JSON? An answer's is as its request's was.
    is_json: bool = True

    @property
    def is_answer(self) -> bool:
        return bool(self.flag & _ANSWER)

    @property
    def wants_answer(self) -> bool:
        """Is it a request that is to be answered?"""
        return not self.flag & (_ANSWER | _ONE_WAY)

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
    """Return the whole frame of COMMAND."""
    header = _json_header(command) if command.is_json else _rocketmq_header(command)
    if len(header) > _HEADER_MAX:
        raise ValueError(f"the header has {len(header):,} bytes, at most {_HEADER_MAX:,} fit")
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
    return json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode()


def _rocketmq_header(command: RemotingCommand) -> bytes:
    remark = command.remark.encode()
    pairs = [(name.encode(), value.encode()) for name, value in command.fields.items()]
    fields = b"".join(
        part
        for name, value in pairs
        for part in (_NAME.pack(len(name)), name, _LENGTH.pack(len(value)), value)
    )
    language = _LANGUAGES.index(command.language)
    head = _HEAD.pack(command.code, language, command.version, command.opaque, command.flag)
    return b"".join((head, _LENGTH.pack(len(remark)), remark, _LENGTH.pack(len(fields)), fields))


def decode(frame: bytes) -> RemotingCommand:
    """Return the command of FRAME, which is what follows its length."""
    if len(frame) < _LENGTH.size:
        raise ValueError(f"a frame of {len(frame)} bytes has no length of a header")
    (word,) = _LENGTH.unpack_from(frame)
    kind, size = word >> 24, word & _HEADER_MAX
    end = _LENGTH.size + size
    if end > len(frame):
        raise ValueError(f"a header of {size:,} bytes does not fit a frame of {len(frame):,}")
    header, body = frame[_LENGTH.size : end], frame[end:]
    if kind == _JSON_KIND:
        return _of_json(header, body)
    if kind == _ROCKETMQ_KIND:
        return _of_rocketmq(header, body)
    raise ValueError(f"a header of kind {kind}: JSON (0) and ROCKETMQ (1) are known")


def _of_json(header: bytes, body: bytes) -> RemotingCommand:
    try:
        head = json.loads(header)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the header is no JSON: {error}") from None
    if not isinstance(head, dict):
        raise ValueError("the header is no JSON object")
    fields = head.get("extFields") or {}
    if not isinstance(fields, dict):
        raise ValueError("extFields is no JSON object")
    return RemotingCommand(
        code=_int(head, "code"),
        opaque=_int(head, "opaque"),
        flag=_int(head, "flag"),
        remark=str(head.get("remark") or ""),
        fields={name: str(value) for name, value in fields.items() if value is not None},
        body=body,
        version=_int(head, "version"),
        language=str(head.get("language") or "OTHER"),
    )


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
    """Return the bytes at AT whose LENGTH stands in front of them, and where they end."""
    (size,) = length.unpack_from(data, at)
    begin = at + length.size
    if size < 0 or begin + size > len(data):
        raise struct.error(f"{size} bytes at {begin} of {len(data)}")
    return data[begin : begin + size], begin + size


# ---------------------------------------------------------------- A TCP connection that carries remoting commands


#: 100,000 topics are some 20 MB.
ANSWER_MAX: Final = 256 << 20
TIMEOUT_S: Final = 10.0


async def read_command(reader: asyncio.StreamReader, size_max: int) -> RemotingCommand | None:
    """Return the next command; None: the peer has closed. Raises ValueError for what is none, OSError."""
    try:
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        if not 4 <= size <= size_max:
            raise ValueError(f"a frame of {size:,} bytes, 4 to {size_max:,} are taken")
        return decode(await reader.readexactly(size))
    except asyncio.IncompleteReadError:
        return None


class RemotingClient:
    """The asking end of a connection to ADDRESS."""

    def __init__(
        self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.address = address
        self._reader = reader
        self._writer = writer
        self._opaque = 0
        self._turn = asyncio.Lock()

    @classmethod
    async def connect(cls, address: str, timeout_s: float = TIMEOUT_S) -> Self:
        """Return a connection to ADDRESS, host:port. Raises ConnectFailed."""
        reader, writer = await open_tcp(address, timeout_s)
        return cls(address, reader, writer)

    async def call(
        self,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        timeout_s: float = TIMEOUT_S,
    ) -> RemotingCommand:
        """Return the answer to the request CODE, which succeeded.

        Raises Unsupported for another answer, ConnectionLost, RequestTimeout; after these two the connection is of no
        use.
        """
        self._opaque += 1
        name = RequestCode(code).name if code in set(RequestCode) else f"request {code}"
        request = RemotingCommand(code=code, opaque=self._opaque, fields=fields or {}, body=body)
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                self._writer.write(encode(request))
                await self._writer.drain()
                answer = await self._answer(request)
        except TimeoutError:
            raise RequestTimeout(
                f"{self.address} did not answer {name} within {timeout_s:.0f} s",
                address=self.address,
            ) from None
        except (OSError, ValueError) as error:
            raise ConnectionLost(
                f"{self.address} failed amid {name}: {error}", address=self.address
            ) from None
        if answer.code != SUCCESS:
            raise Unsupported(
                f"{self.address} answered {name} with code {answer.code}: {answer.remark[:200] or 'no word why'}",
                address=self.address,
                code=answer.code,
            )
        return answer

    async def _answer(self, request: RemotingCommand) -> RemotingCommand:
        while True:
            command = await read_command(self._reader, ANSWER_MAX)
            if command is None:
                raise ConnectionResetError("it closed the connection")
            if command.is_answer and command.opaque == request.opaque:
                return command  # Others are late, or what the peer asks of its clients.

    @property
    def is_closed(self) -> bool:
        """Has the peer closed?"""
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        """Let go of the connection at once. Twice is once."""
        self._writer.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


async def open_tcp(
    address: str, timeout_s: float, limit: int = 1 << 20
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a connection to ADDRESS, host:port. Raises ConnectFailed."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            return await asyncio.open_connection(host.strip("[]"), int(port), limit=limit)
    except TimeoutError:
        raise ConnectFailed(
            f"{address} did not answer within {timeout_s:.0f} s", address=address
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConnectFailed(f"{address} cannot be reached: {reason}", address=address) from error


# ---------------------------------------------------------------- the wire by which a slave takes its master's log


#: What an Apache slave's buffer takes; masters send 32 KiB unless haTransferBatchSize says otherwise.
FRAME_MAX: Final = (4 << 20) - 36
#: More do not fit Apache's buffer of a handshake.
EPOCHS_MAX: Final = 1_000

_HANDSHAKE, _TRANSFER = 1, 2
_REPORT: Final = struct.Struct(">q")
_CLASSIC: Final = struct.Struct(">qi")
_GREETING: Final = struct.Struct(">ihhq")
_LATER_REPORT: Final = struct.Struct(">iq")
_STATE_AND_SIZE: Final = struct.Struct(">ii")
_HANDSHAKE_HEAD: Final = struct.Struct(">iiqi")
_EPOCH: Final = struct.Struct(">iq")
_TRANSFER_HEAD: Final = struct.Struct(">iiqiqq")


class LogFrame(NamedTuple):
    """DATA of the master's log from OFFSET on; without any, a heartbeat. The rest is auto-switch's."""

    offset: int
    data: bytes
    epoch: int = 0
    epoch_start: int = 0
    confirm: int = -1


class Handshake(NamedTuple):
    """What a master in controller mode answers first: where its log ends, and which epoch began where."""

    end: int
    last_epoch: int
    epochs: tuple[tuple[int, int], ...]


# --- what a slave sends


def classic_report(end: int) -> bytes:
    """Return the report that the slave's log ends at END."""
    return _REPORT.pack(end)


def greeting(broker_id: int, *, learner: bool, newest_file: bool = False) -> bytes:
    """Return the handshake of slave BROKER_ID; send it in one piece.

    LEARNER: it never counts among those that are in sync. NEWEST_FILE: if empty it takes only that.
    """
    return _GREETING.pack(_HANDSHAKE, newest_file, learner, broker_id)


def report(end: int) -> bytes:
    """Return auto-switch's report that the slave's log ends at END."""
    return _LATER_REPORT.pack(_TRANSFER, end)


# --- what a master sends


def classic_frame(offset: int, data: bytes | memoryview = b"") -> bytes:
    """Return the frame of DATA at OFFSET, or a heartbeat."""
    return b"".join((_CLASSIC.pack(offset, len(data)), data))


def handshake_answer(answer: Handshake) -> bytes:
    """Return the master's handshake."""
    entries = b"".join(_EPOCH.pack(*one) for one in answer.epochs)
    return _HANDSHAKE_HEAD.pack(_HANDSHAKE, len(entries), answer.end, answer.last_epoch) + entries


def transfer_frame(frame: LogFrame) -> bytes:
    """Return auto-switch's FRAME."""
    head = (frame.offset, frame.epoch, frame.epoch_start, frame.confirm)
    return _TRANSFER_HEAD.pack(_TRANSFER, len(frame.data), *head) + frame.data


# --- what is read


class ClassicReports:
    """The reports of a slave; only the last whole one counts."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> int | None:
        """Take DATA; return the newest end that it tells, None: it tells none. ValueError for one below 0."""
        data = self._rest + data
        whole = len(data) - len(data) % _REPORT.size
        self._rest = data[whole:]
        if not whole:
            return None
        end: int = _REPORT.unpack_from(data, whole - _REPORT.size)[0]
        if end < 0:
            raise ValueError(f"a slave says that its log ends at {end}")
        return end


class ClassicFrames:
    """The frames of a classic master."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[LogFrame]:
        """Take DATA; return the frames that are whole now. Raises ValueError for one that cannot be."""
        self._buffer += data
        frames: list[LogFrame] = []
        at, have = 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while have - at >= _CLASSIC.size:
                offset, size = _CLASSIC.unpack_from(view, at)
                _check(offset, size, FRAME_MAX)
                begin = at + _CLASSIC.size
                if have - begin < size:
                    break
                frames.append(LogFrame(offset, bytes(view[begin : begin + size])))
                at = begin + size
        del self._buffer[:at]
        return frames


class AutoSwitchFrames:
    """The handshake and the frames of a master in controller mode."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[LogFrame | Handshake]:
        """Take DATA; return what is whole now. Raises ValueError for a frame that cannot be."""
        self._buffer += data
        found: list[LogFrame | Handshake] = []
        at, have = 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while have - at >= _STATE_AND_SIZE.size:
                one = self._one(view[at:])
                if one is None:
                    break
                found.append(one[0])
                at += one[1]
        del self._buffer[:at]
        return found

    def _one(self, view: memoryview) -> tuple[LogFrame | Handshake, int] | None:
        """Return the first of VIEW and its length; None: it is not whole."""
        state, size = _STATE_AND_SIZE.unpack_from(view)
        if state == _HANDSHAKE:
            if size % _EPOCH.size:
                raise ValueError(f"a master's handshake has {size} bytes of epochs of 12 each")
            _check(0, size, EPOCHS_MAX * _EPOCH.size)
            if len(view) < _HANDSHAKE_HEAD.size + size:
                return None
            _, _, end, last = _HANDSHAKE_HEAD.unpack_from(view)
            begin = _HANDSHAKE_HEAD.size
            entries = tuple(_EPOCH.iter_unpack(view[begin : begin + size]))
            _check(end, size, FRAME_MAX)
            return Handshake(end, last, entries), begin + size
        if state != _TRANSFER:
            raise ValueError(f"a master's frame begins with state {state}, not 1 or 2")
        _check(0, size, FRAME_MAX)
        if len(view) < _TRANSFER_HEAD.size + size:
            return None
        _, _, offset, epoch, epoch_start, confirm = _TRANSFER_HEAD.unpack_from(view)
        _check(offset, size, FRAME_MAX)
        begin = _TRANSFER_HEAD.size
        data = bytes(view[begin : begin + size])
        return LogFrame(offset, data, epoch, epoch_start, confirm), begin + size


def _check(offset: int, size: int, most: int) -> None:
    if not 0 <= size <= most:
        raise ValueError(
            f"a master's frame of {size:,} bytes, at most {most:,} are taken: see haTransferBatchSize there"
        )
    if offset < 0:
        raise ValueError(f"a master's frame stands at {offset}")


def consistent_end(
    mine: tuple[tuple[int, int], ...],
    my_end: int,
    theirs: tuple[tuple[int, int], ...],
    their_end: int,
) -> int | None:
    """Return up to where two logs are one, by the epochs of each; None: they have no epoch in common.

    From the newest epoch of MINE down, the first that THEIRS has with the same start, and there the lesser of both
    ends: Apache's `findConsistentPoint`.
    """
    ends = _ends(theirs, their_end)
    for number in range(len(mine) - 1, -1, -1):
        if (end := ends.get(mine[number])) is not None:
            own = mine[number + 1][1] if number + 1 < len(mine) else my_end
            return min(own, end)
    return None


def _ends(epochs: tuple[tuple[int, int], ...], end: int) -> dict[tuple[int, int], int]:
    """Return where each of EPOCHS ends, the last with END."""
    nexts = [start for _, start in epochs[1:]] + [end]
    return dict(zip(epochs, nexts, strict=True))
