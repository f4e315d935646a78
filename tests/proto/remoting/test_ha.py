"""The wire of the log: bytes as a master and a slave of Apache RocketMQ 5.5.0 sent them, in any cuts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.slave_protocol import (
    FRAME_MAX,
    AutoSwitchFrames,
    ClassicFrames,
    ClassicReports,
    Handshake,
    LogFrame,
    classic_frame,
    classic_report,
    consistent_end,
    greeting,
    handshake_answer,
    report,
    transfer_frame,
)

OFFSETS = st.integers(0, 2**63 - 1)


def test_what_is_sent_has_the_bytes_of_apaches_code() -> None:
    assert classic_report(431_975).hex() == "0000000000069767"
    assert classic_frame(3_145_728, b"ab").hex() == "0000000000300000000000026162"
    assert greeting(2, learner=True).hex() == "00000001000000010000000000000002"
    assert greeting(2, learner=False, newest_file=True).hex()[8:16] == "00010000"
    assert report(425).hex() == "0000000200000000000001a9"
    told = handshake_answer(Handshake(0, 1, ((1, 0),)))
    assert told.hex() == "000000010000000c" + "00" * 8 + "0000000100000001" + "00" * 8
    sent = transfer_frame(LogFrame(0, b"x", 1, 0, 425))
    assert sent.hex() == "0000000200000001" + "00" * 8 + "00000001" + "00" * 8 + (
        "00000000000001a978"
    )


def cut(data: Any, whole: bytes) -> list[bytes]:
    """Return WHOLE in any pieces."""
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    return [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]


@given(data=st.data(), frames=st.lists(st.tuples(OFFSETS, st.binary(max_size=60)), max_size=6))
def test_classic_frames_are_read_in_any_cuts(data: Any, frames: list[tuple[int, bytes]]) -> None:
    reader = ClassicFrames()
    found = [
        one
        for part in cut(data, b"".join(classic_frame(*f) for f in frames))
        for one in reader.feed(part)
    ]
    assert found == [LogFrame(*one) for one in frames]


NUMBERS = st.integers(0, 2**31 - 1)
EPOCHS = st.lists(st.tuples(NUMBERS, OFFSETS), max_size=4).map(tuple)
SAID: Any = st.one_of(
    st.builds(Handshake, OFFSETS, NUMBERS, EPOCHS),
    st.builds(LogFrame, OFFSETS, st.binary(max_size=60), NUMBERS, OFFSETS, OFFSETS),
)


@given(data=st.data(), said=st.lists(SAID, max_size=6))
def test_auto_switch_frames_are_read_in_any_cuts(
    data: Any, said: list[Handshake | LogFrame]
) -> None:
    whole = b"".join(
        handshake_answer(one) if isinstance(one, Handshake) else transfer_frame(one) for one in said
    )
    reader = AutoSwitchFrames()
    assert [one for part in cut(data, whole) for one in reader.feed(part)] == said


@given(data=st.data(), ends=st.lists(OFFSETS, min_size=1, max_size=6))
def test_of_reports_the_last_whole_one_counts(data: Any, ends: list[int]) -> None:
    reader = ClassicReports()
    found = [reader.feed(part) for part in cut(data, b"".join(map(classic_report, ends)))]
    assert [one for one in found if one is not None][-1] == ends[-1]


@pytest.mark.parametrize("size", [-1, FRAME_MAX + 1, 2**31 - 1])
def test_a_frame_that_cannot_be_is_refused_before_it_is_kept(size: int) -> None:
    head = (0).to_bytes(8, "big") + size.to_bytes(4, "big", signed=True)
    with pytest.raises(ValueError, match="haTransferBatchSize"):
        ClassicFrames().feed(head)
    with pytest.raises(ValueError, match="haTransferBatchSize"):
        AutoSwitchFrames().feed(b"\0\0\0\2" + size.to_bytes(4, "big", signed=True))
    with pytest.raises(ValueError, match="has the offset -1"):
        ClassicFrames().feed(classic_frame(-1))
    with pytest.raises(ValueError, match="state 3"):
        AutoSwitchFrames().feed(b"\0\0\0\3" + bytes(4))


@given(junk=st.binary(max_size=200))
def test_junk_is_frames_or_an_error_of_one_kind(junk: bytes) -> None:
    for reader in (ClassicFrames(), AutoSwitchFrames(), ClassicReports()):
        try:
            reader.feed(junk)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("mine", "my_end", "theirs", "their_end", "end"),
    [
        (((1, 0),), 100, ((1, 0),), 100, 100),
        (((1, 0),), 100, ((1, 0), (2, 80)), 300, 80),  # We have what epoch 1 lost.
        (((1, 0), (2, 90)), 120, ((1, 0), (3, 95)), 300, 90),
        (((1, 0), (2, 80)), 100, ((2, 80), (3, 300)), 400, 100),
        (((1, 0),), 100, ((2, 0),), 300, None),
        ((), 0, ((1, 0),), 10, None),
    ],
)
def test_logs_part_where_their_epochs_say(
    mine: Any, my_end: int, theirs: Any, their_end: int, end: int | None
) -> None:
    assert consistent_end(mine, my_end, theirs, their_end) == end
