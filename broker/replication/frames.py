"""The frames between a follower and its master: how they are encoded, and checks of their fields.

Checks raise InvalidArgument with field, value and limit.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Sequence
from typing import Any, Final

from ...proto.errors import InvalidArgument
from ...proto.gen import pocketmq_v1_pb2 as pb
from .in_sync import ReplicaSettings
from .log_epochs import EPOCHS_MAX
from .registry import LiveNode
from .registry_format import EPOCH_MAX, REPLICA_ID_MAX

#: Bytes of the log in one frame.
DATA_SIZE_MAX: Final = 1_048_576
#: A follower that lacks more of the confirmed log is not in sync, so no send waits for its disk or
#: acks.
FAR_BYTES: Final = 4 * DATA_SIZE_MAX
_STATE_FILES_MAX: Final = 64
#: The version of a replicated table is the epoch of its master, shifted by so many bits, plus a count.
VERSION_BITS: Final = 32
_STATE_FILE_NAME_MAX: Final = 128
#: Limit of the content of one frame of replicated tables: the rest of the frame must fit into a
#: message, too.
STATE_SIZE_MAX: Final = 64 * 1_048_576 - 4_096


#: The begin of a field with bytes: its number and wire type.
_BYTES_TAG: Final = bytes((pb.FollowReply.BYTES_FIELD_NUMBER << 3 | 2,))
_DATA_TAG: Final = bytes((pb.FollowBytes.DATA_FIELD_NUMBER << 3 | 2,))


def encoded_reply(
    epoch: int, offset: int, data: bytes | memoryview, confirm: int, min_offset: int = 0
) -> tuple[bytes, bytes | memoryview]:
    """Return the frame of DATA at OFFSET of the log, encoded in two pieces. DATA, the second one, is not copied.

    Without data it is a heartbeat. Protobuf's own encoder copies 1 MiB several times into new memory, which takes 3 ms.
    """
    frame = pb.FollowBytes(
        epoch=epoch,
        offset=offset,
        crc32=zlib.crc32(data),
        confirm=confirm,
        min_offset=min_offset,
    ).SerializeToString()
    # Fields may come in any order: data is the last.
    frame += _DATA_TAG + _varint(len(data))
    return _BYTES_TAG + _varint(len(frame) + len(data)) + frame, data


def _varint(value: int) -> bytes:
    """Return VALUE, which is not negative, as a varint: seven bits per byte, lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def check_hello(hello: pb.FollowHello) -> None:
    """Raise InvalidArgument if HELLO is inconsistent or exceeds limits."""
    _within("replica_id", hello.replica_id, 1, REPLICA_ID_MAX)
    _within("epoch_seen", hello.epoch_seen, 0, EPOCH_MAX)
    _check_epochs(hello.epochs, hello.epoch_seen)
    _within("end", hello.end, 0)
    _within("synced", hello.synced, 0, hello.end)
    _within("file_size", hello.file_size, 1)
    if len(hello.state_versions) > _STATE_FILES_MAX:
        raise InvalidArgument(
            f"state_versions has {len(hello.state_versions)} files, and {_STATE_FILES_MAX} are the limit"
        )
    for file in hello.state_versions:
        _check_file(file)


def check_belongs(
    hello: pb.FollowHello, settings: ReplicaSettings, replicas: Collection[int]
) -> None:
    """Raise InvalidArgument unless HELLO is of another replica of the set with SETTINGS, which has REPLICAS."""
    for name, theirs, ours, remedy in (
        ("cluster", hello.cluster, settings.cluster, "start it with broker.cluster {}"),
        ("set", hello.set, settings.set_name, "start it with --replica-set {}"),
        (
            "file_size",
            hello.file_size,
            settings.file_size,
            "start it with store.log_file_size_bytes {}, and a new store if its own has other files",
        ),
    ):
        if theirs != ours:
            raise InvalidArgument(
                f"{name} is {theirs!r:.80}, and this replica's is {ours!r:.80}: {remedy.format(ours)}"
            )
    if hello.replica_id == settings.replica_id:
        raise InvalidArgument(
            f"replica_id {hello.replica_id} is taken by the replica that was dialled"
        )
    if replicas and hello.replica_id not in replicas:
        raise InvalidArgument(f"replica_id {hello.replica_id} is not in the set: add it first")


def check_begin(begin: pb.FollowBegin) -> None:
    """Raise InvalidArgument if BEGIN is inconsistent or exceeds limits."""
    _within("epoch", begin.epoch, 1, EPOCH_MAX)
    _check_epochs(begin.epochs)
    if not begin.epochs or begin.epochs[-1].epoch != begin.epoch:
        newest = begin.epochs[-1].epoch if begin.epochs else "none"
        raise InvalidArgument(
            f"epochs must end with epoch {begin.epoch}, the master's, not {newest}"
        )
    _within("end", begin.end, begin.epochs[-1].start)
    _within("min_offset", begin.min_offset, 0, begin.end)
    _within("truncate_to", begin.truncate_to, -1, begin.end)


def check_epoch_seen(hello: pb.FollowHello, known: int, node: LiveNode | None) -> None:
    """Raise InvalidArgument if the metadata store does not know the epoch that HELLO has seen.

    Valid epochs are those up to KNOWN, the one in the set's metadata, and that of a failed candidate in its live NODE.
    So a malformed hello cannot raise the epoch of the set. Nor can the highest number, which no epoch could follow.
    """
    announced = node.epoch_seen if node else 0
    if known < announced == EPOCH_MAX:
        raise InvalidArgument(
            f"epoch_seen is {announced}, after which no master can be elected: upgrade and restart replica"
            f" {hello.replica_id}, which repairs its replica.json",
            field="epoch_seen",
            value=announced,
            limit=EPOCH_MAX - 1,
        )
    most = max(known, announced)
    if hello.epoch_seen > most:
        raise InvalidArgument(
            f"epoch_seen is {hello.epoch_seen}, and known epochs reach up to {most}:"
            " connect again when the metadata of the set has it",
            field="epoch_seen",
            value=hello.epoch_seen,
            limit=most,
        )


def check_cut(cut: pb.FollowCut) -> None:
    """Raise InvalidArgument if CUT is inconsistent."""
    _within("end", cut.end, 0)
    _within("synced", cut.synced, 0, cut.end)


def check_bytes(frame: pb.FollowBytes) -> bytes:
    """Return the bytes of FRAME; raise InvalidArgument if it exceeds limits, or the bytes are corrupt."""
    _within("epoch", frame.epoch, 1, EPOCH_MAX)
    _within("offset", frame.offset, 0)
    _within("confirm", frame.confirm, 0)
    _within("min_offset", frame.min_offset, 0, max(frame.offset, frame.confirm))
    data = frame.data  # Each access makes a copy.
    if len(data) > DATA_SIZE_MAX:
        raise InvalidArgument(f"data has {len(data)} bytes, and {DATA_SIZE_MAX} are the limit")
    if (found := zlib.crc32(data)) != frame.crc32:
        raise InvalidArgument(
            f"data of offset {frame.offset} has the CRC-32 {found:#010x}, and {frame.crc32:#010x} was sent: "
            "its bytes changed on the way"
        )
    return data


def next_bytes(frame: pb.FollowBytes, epoch: int, end: int) -> bytes:
    """As `check_bytes`; also raise InvalidArgument unless FRAME has EPOCH and starts at END of the log."""
    data = check_bytes(frame)
    if frame.epoch != epoch:
        raise InvalidArgument(f"epoch is {frame.epoch}, and {epoch} is followed")
    if frame.offset != end:
        raise InvalidArgument(f"offset is {frame.offset}, and the log ends at {end}")
    return data


def check_ack(ack: pb.FollowAck) -> None:
    """Raise InvalidArgument if ACK is inconsistent or exceeds limits."""
    _within("epoch", ack.epoch, 1, EPOCH_MAX)
    _within("written", ack.written, 0)
    _within("synced", ack.synced, 0, ack.written)


def check_state(state: pb.FollowState) -> None:
    """Raise InvalidArgument if STATE exceeds limits."""
    _within("epoch", state.epoch, 1, EPOCH_MAX)
    _within("log_offset", state.log_offset, 0)
    _check_file(state.file)
    if (content := state.WhichOneof("content")) is None:
        raise InvalidArgument(f"content of {state.file!r} is missing: neither whole nor a diff")
    if (size := len(getattr(state, content))) > STATE_SIZE_MAX:
        raise InvalidArgument(f"{content} has {size} bytes, and {STATE_SIZE_MAX} are the limit")
    # A follower that stored a version of a later epoch would accept nothing from masters before
    # that epoch.
    _within(
        "version",
        state.version,
        state.epoch << VERSION_BITS,
        (state.epoch + 1 << VERSION_BITS) - 1,
    )


def read_state(content: bytes) -> dict[str, Any]:
    """Return the JSON object of a frame of replicated tables.

    Raises ValueError for a value that a store's files cannot hold: a number beyond 64-bit integers, text that is not
    UTF-8, and deep nesting.
    """
    try:
        document = json.loads(content, parse_int=_long, parse_float=_long, parse_constant=_long)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(document, dict):
        raise ValueError(f"it is {type(document).__name__}, not an object")
    if rb"\u" in content:
        json.dumps(document, ensure_ascii=False).encode()
    return document


def _long(text: str) -> int:
    value = int(text) if len(text) <= 20 else 2**63
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{text:.40} is no 64-bit integer")
    return value


def check_state_ack(ack: pb.FollowStateAck) -> None:
    """Raise InvalidArgument if ACK exceeds limits."""
    _check_file(ack.file)
    _within("version", ack.version, 0)


def _check_epochs(entries: Sequence[pb.EpochStart], most: int = EPOCH_MAX) -> None:
    if len(entries) > EPOCHS_MAX:
        raise InvalidArgument(f"epochs has {len(entries)} entries, and {EPOCHS_MAX} are the limit")
    epoch, start = 0, -1
    for one in entries:
        _within("epochs: epoch", one.epoch, epoch + 1, most)
        _within(f"epochs: start of epoch {one.epoch}", one.start, start + 1)
        epoch, start = one.epoch, one.start


def _check_file(name: str) -> None:
    """Raise InvalidArgument unless NAME is a file in the store's folder or below."""
    parts = name.split("/")
    if not 0 < len(name) <= _STATE_FILE_NAME_MAX or not all(
        part.strip(".") and part.isprintable() and "\\" not in part for part in parts
    ):
        raise InvalidArgument(f"file must be a relative path without dots alone, not {name[:80]!r}")


def _within(field: str, value: int, least: int, most: int = 2**63 - 1) -> None:
    if not least <= value <= most:
        raise InvalidArgument(f"{field} is {value}, not from {least} to {most}", field=field)
