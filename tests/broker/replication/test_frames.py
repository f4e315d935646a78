"""Frames between a follower and its master: what is refused before anything is believed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pocketmq.broker.replication.frames import (
    DATA_SIZE_MAX,
    check_ack,
    check_begin,
    check_bytes,
    check_cut,
    check_hello,
    check_state,
    check_state_ack,
    encoded_reply,
)
from pocketmq.broker.replication.log_epochs import EPOCHS_MAX
from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb

from .log_frames import bytes_frame

EPOCHS = [pb.EpochStart(epoch=1, start=0), pb.EpochStart(epoch=3, start=8)]
HELLO = pb.FollowHello(
    cluster="c", set="s", replica_id=2, epoch_seen=3, epochs=EPOCHS, end=20, synced=12, file_size=1
)
BEGIN = pb.FollowBegin(epoch=3, epochs=EPOCHS, end=20, min_offset=4, truncate_to=-1)
STATE = pb.FollowState(
    epoch=3, log_offset=4, file="config/topics.json", version=3 << 32 | 1, whole=b"{}"
)


def changed(frame: Any, **values: Any) -> Any:
    other = type(frame)()
    other.CopyFrom(frame)
    for name, value in values.items():
        if isinstance(value, list | dict):
            other.ClearField(name)
            at = getattr(other, name)
            at.update(value) if isinstance(value, dict) else at.extend(value)
        else:
            setattr(other, name, value)
    return other


def test_good_frames_pass() -> None:
    check_hello(HELLO)
    check_begin(BEGIN)
    check_cut(pb.FollowCut(end=4, synced=4))
    check_bytes(bytes_frame(3, 20, b"x" * DATA_SIZE_MAX, 8))
    check_bytes(bytes_frame(3, 20, b"", 8))
    check_ack(pb.FollowAck(epoch=1, written=4, synced=4))
    check_state(STATE)
    check_state_ack(pb.FollowStateAck(file="timers", version=0))


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_384, DATA_SIZE_MAX])
def test_a_frame_that_is_encoded_in_pieces_says_what_it_would_in_one(size: int) -> None:
    said = (3, 2**40 + 1, memoryview(bytes(range(256)) * 4_096)[:size], 2**41, 8)

    got = pb.FollowReply.FromString(b"".join(encoded_reply(*said)))

    epoch, offset, data, confirm, min_offset = said
    assert got == pb.FollowReply(bytes=bytes_frame(epoch, offset, bytes(data), confirm, min_offset))


BAD: list[tuple[Callable[[Any], object], Any, str]] = [
    (check_hello, changed(HELLO, replica_id=0), "replica_id is 0, not from 1 to"),
    (check_hello, changed(HELLO, epoch_seen=-1), "epoch_seen is -1, not from 0 to"),
    (check_hello, changed(HELLO, epoch_seen=2), "epochs: epoch is 3, not from 2 to 2"),
    (check_hello, changed(HELLO, end=-1, synced=-1), "end is -1, not from 0 to"),
    (check_hello, changed(HELLO, synced=21), "synced is 21, not from 0 to 20"),
    (check_hello, changed(HELLO, file_size=0), "file_size is 0, not from 1 to"),
    (check_hello, changed(HELLO, epochs=EPOCHS[::-1]), "epochs: epoch is 1, not from 4 to"),
    (check_hello, changed(HELLO, epochs=[EPOCHS[0]] * 2), "epochs: epoch is 1, not from 2 to"),
    (
        check_hello,
        changed(HELLO, epoch_seen=4, epochs=[EPOCHS[1], pb.EpochStart(epoch=4, start=8)]),
        "epochs: start of epoch 4 is 8, not from 9 to",
    ),
    (
        check_hello,
        changed(HELLO, epochs=[pb.EpochStart(epoch=n, start=n) for n in range(1, EPOCHS_MAX + 2)]),
        f"epochs has {EPOCHS_MAX + 1} entries, and {EPOCHS_MAX} are the limit",
    ),
    (check_hello, changed(HELLO, state_versions={"../x": 1}), "file must be a relative path"),
    (
        check_hello,
        changed(HELLO, state_versions={f"f{n}": 1 for n in range(65)}),
        "state_versions has 65 files, and 64 are the limit",
    ),
    (
        check_begin,
        changed(BEGIN, epochs=[]),
        "epochs must end with epoch 3, the master's, not none",
    ),
    (check_begin, changed(BEGIN, epoch=4), "epochs must end with epoch 4, the master's, not 3"),
    (check_begin, changed(BEGIN, end=7), "end is 7, not from 8 to"),
    (check_begin, changed(BEGIN, min_offset=21), "min_offset is 21, not from 0 to 20"),
    (check_begin, changed(BEGIN, truncate_to=21), "truncate_to is 21, not from -1 to 20"),
    (check_begin, changed(BEGIN, truncate_to=-2), "truncate_to is -2, not from -1 to 20"),
    (check_cut, pb.FollowCut(end=4, synced=5), "synced is 5, not from 0 to 4"),
    (
        check_bytes,
        changed(bytes_frame(3, 20, b"abc", 0), data=b"abd"),
        "its bytes changed on the way",
    ),
    (check_bytes, bytes_frame(0, 20, b"", 0), "epoch is 0, not from 1 to"),
    (check_bytes, bytes_frame(1, -1, b"", 0), "offset is -1, not from 0 to"),
    (check_bytes, bytes_frame(1, 0, b"", -1), "confirm is -1, not from 0 to"),
    (check_bytes, bytes_frame(1, 8, b"", 8, 9), "min_offset is 9, not from 0 to 8"),
    (check_bytes, bytes_frame(1, 0, bytes(DATA_SIZE_MAX + 1), 0), "1048576 are the limit"),
    (check_ack, pb.FollowAck(epoch=0), "epoch is 0, not from 1 to"),
    (check_ack, pb.FollowAck(epoch=1, written=1, synced=2), "synced is 2, not from 0 to 1"),
    (check_state, changed(STATE, file="/etc/passwd"), "file must be a relative path"),
    (check_state, changed(STATE, file="config/../../x"), "file must be a relative path"),
    (check_state, changed(STATE, file="x" * 129), "file must be a relative path"),
    (check_state, changed(STATE, file=""), "file must be a relative path"),
    (check_state, pb.FollowState(epoch=1, file="f"), "content of 'f' is missing"),
    (check_state, changed(STATE, log_offset=-1), "log_offset is -1, not from 0 to"),
    (check_state, changed(STATE, version=4 << 32), "version is 17179869184, not from 12884901888"),
    (check_state, changed(STATE, version=2**63 - 1), "version is 9223372036854775807, not from"),
    (check_state_ack, pb.FollowStateAck(file="a\\b"), "file must be a relative path"),
    (check_state_ack, pb.FollowStateAck(file="a", version=-1), "version is -1, not from 0 to"),
]


@pytest.mark.parametrize(("check", "frame", "fault"), BAD, ids=[fault for *_, fault in BAD])
def test_a_bad_frame_is_refused_with_its_field_and_bound(
    check: Callable[[Any], object], frame: Any, fault: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check(frame)

    assert fault in str(refused.value)
