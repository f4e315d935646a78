"""Frames with bytes of a log, as a master sends them."""

from __future__ import annotations

import zlib

from pocketmq.proto.gen import pocketmq_v1_pb2 as pb


def bytes_frame(
    epoch: int, offset: int, data: bytes, confirm: int, min_offset: int = 0
) -> pb.FollowBytes:
    """Return the frame of DATA at OFFSET of the log; without data it is a heartbeat."""
    return pb.FollowBytes(
        epoch=epoch,
        offset=offset,
        data=data,
        crc32=zlib.crc32(data),
        confirm=confirm,
        min_offset=min_offset,
    )
