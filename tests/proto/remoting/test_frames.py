"""Frames in a stream: complete ones come out however the bytes were divided, and lengths out of range are refused."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.remoting.command import REQUEST_MAX
from pocketmq.proto.remoting.frames import FrameSplitter


@given(
    st.lists(st.binary(min_size=4, max_size=30), max_size=8),
    st.lists(st.integers(1, 40)),
    st.data(),
)
def test_frames_do_not_depend_on_how_their_bytes_arrive(
    frames: list[bytes], cuts: list[int], data: st.DataObject
) -> None:
    stream = b"".join(len(frame).to_bytes(4) + frame for frame in frames)
    stop = data.draw(st.integers(0, len(stream)))
    reader, found, at = FrameSplitter(64), [], 0

    for size in [*cuts, len(stream)]:
        found += reader.feed(stream[at : min(at + size, stop)])
        at = min(at + size, stop)

    whole = b"".join(len(frame).to_bytes(4) + frame for frame in found)
    assert found == frames[: len(found)]
    assert stream[: len(whole)] == whole
    assert reader.held == stop - len(whole)


@pytest.mark.parametrize("size", [REQUEST_MAX + 1, 3, 0, -1, -(2**31), 2**31 - 1])
def test_a_length_out_of_range_is_refused_before_the_frame_arrives(size: int) -> None:
    reader = FrameSplitter(REQUEST_MAX)

    with pytest.raises(ValueError, match=f"a frame of {size:,} bytes, must have 4 to 16,777,216"):
        reader.feed(size.to_bytes(4, signed=True))
