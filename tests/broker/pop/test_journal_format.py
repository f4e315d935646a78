"""The bytes of the journal of deliveries."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pocketmq.broker.pop.journal_format import (
    HEAD_SIZE,
    JOURNAL,
    Change,
    ClockMark,
    Decoder,
    Encoder,
    Finished,
    Forgotten,
    InFlight,
    JournalDamage,
    JournalEnd,
    LogMark,
    Looked,
    LookedSpan,
    Moved,
    PopKey,
    Said,
    clock_mark,
    end,
    frame,
    frames,
    head,
    is_readable,
    log_mark,
)

KEY = PopKey("g", "T", 3)
OFFSETS = st.integers(0, 2**63 - 1)
KEYS = st.builds(PopKey, st.text(max_size=20), st.text(max_size=20), st.integers(0, 2**31 - 1))
CHANGES = st.one_of(
    st.builds(
        InFlight,
        KEYS,
        OFFSETS,
        st.integers(0, 2**31 - 1),
        st.integers(-(2**63), 2**63 - 1),
        st.text(max_size=20),
        st.integers(0, 2**64 - 1),
        st.booleans(),
        st.text(max_size=20),
    ),
    st.builds(Finished, KEYS, OFFSETS, OFFSETS),
    st.builds(Looked, KEYS, OFFSETS),
    st.builds(Moved, KEYS, OFFSETS),
    st.builds(Forgotten, st.text(max_size=20), st.text(max_size=20)),
)


def plain(said: Said) -> Said | Looked:
    return Looked(said.key, said.offset) if isinstance(said, LookedSpan) else said


@pytest.mark.slow
@given(st.lists(CHANGES, max_size=40))
def test_changes_are_read_as_they_were_written(changes: list[Change]) -> None:
    said = Decoder().decode(Encoder().encode(changes))

    assert [plain(one) for one in said] == changes


def test_bytes_are_those_of_version_1() -> None:
    delivery = InFlight(KEY, 7, 2, 1_000, "c", 0xABC, True, "at")
    finished = [Finished(KEY, 7), Finished(KEY, 6, 99)]
    changes: list[Change] = [delivery, Looked(KEY, 8), *finished, Moved(KEY, 5), Forgotten("g", "")]
    data = Encoder().encode(changes) + log_mark(LogMark(99, 1))
    data += clock_mark(ClockMark(98, 97)) + end()

    assert data.hex(" ", -1) == (
        "01 00 00 00 03 00 01 00 01 67 54"
        " 02 00 01 00 02 63 61 74"
        " 03 00 00 00 00 00 00 00 07 00 00 00 02 00 00 00 00 00 00 03 e8 00 00 00 00 00 00 0a bc 01"
        " 06 ff ff ff ff ff ff ff ff 00 00 00 00 00 00 00 08"
        " 04 00 00 00 00 00 00 00 07"
        " 05 00 00 00 00 00 00 00 06 00 00 00 00 00 00 00 63"
        " 07 00 00 00 00 00 00 00 05"
        " 08 00 01 00 00 67"
        " 09 00 00 00 00 00 00 00 63 00 00 00 01"
        " 0b 00 00 00 00 00 00 00 62 00 00 00 00 00 00 00 61"
        " 0a"
    )
    assert Decoder().decode(data)[-3:] == [LogMark(99, 1), ClockMark(98, 97), JournalEnd()]
    assert head(JOURNAL, 2).hex(" ") == "50 4d 50 4a 00 01 00 01 00 00 00 00 00 00 00 02"
    assert frame(1, b"\x0a").hex(" ") == "50 4d 70 66 00 00 00 01 00 00 00 01 d4 9b 1f 54 0a"


def test_what_was_looked_at_is_a_chain() -> None:
    encoder = Encoder()

    first, second = encoder.encode([Looked(KEY, 8)]), encoder.encode([Looked(KEY, 12)])
    whole = encoder.encode([Looked(KEY, 12)], absolute=True)
    moved = encoder.encode([Moved(KEY, 2), Looked(KEY, 4)])

    assert Decoder().decode(first + second[11:]) == [LookedSpan(KEY, -1, 8), LookedSpan(KEY, 8, 12)]
    assert Decoder().decode(whole) == [LookedSpan(KEY, -1, 12)]
    assert Decoder().decode(moved) == [Moved(KEY, 2), LookedSpan(KEY, 2, 4)]


def file_of(*contents: bytes) -> bytearray:
    made = [frame(number, content) for number, content in enumerate(contents, start=1)]
    return bytearray(head(JOURNAL, 1) + b"".join(made) + bytes(100))


CONTENTS = [bytes([65 + number]) * (10 + number) for number in range(5)]


def test_frames_of_a_sound_file_end_at_the_zeros() -> None:
    damage: list[JournalDamage] = []

    assert list(frames(bytes(file_of(*CONTENTS)), damage)) == CONTENTS
    assert damage == []


@given(st.integers(0, 4), st.integers(0, 25), st.integers(1, 255))
def test_a_damaged_frame_costs_itself_alone(which: int, byte: int, flip: int) -> None:
    data = file_of(*CONTENTS)
    start = HEAD_SIZE + sum(16 + len(content) for content in CONTENTS[:which])
    data[start + byte % (16 + len(CONTENTS[which]))] ^= flip
    damage: list[JournalDamage] = []

    found = list(frames(bytes(data), damage))

    assert found == CONTENTS[:which] + CONTENTS[which + 1 :]
    ((at, size, torn, lost),) = damage
    assert (at, size, torn, lost) == (start, 16 + len(CONTENTS[which]), which == 4, 1)


@given(st.integers(HEAD_SIZE, HEAD_SIZE + sum(16 + len(content) for content in CONTENTS)))
def test_a_cut_file_has_the_frames_before_the_cut(cut: int) -> None:
    damage: list[JournalDamage] = []

    found = list(frames(bytes(file_of(*CONTENTS)[:cut]), damage))

    assert found == CONTENTS[: len(found)]
    whole = HEAD_SIZE + sum(16 + len(content) for content in found)
    assert [(one.at, one.torn) for one in damage] == ([(whole, True)] if cut > whole else [])


@pytest.mark.parametrize("data", [b"", b"PMPJ", bytes(64), b"PMPJ\0\2\0\1" + bytes(8)])
def test_other_files_are_not_read(data: bytes) -> None:
    assert not is_readable(data)


def test_a_change_of_a_later_version_is_refused() -> None:
    with pytest.raises(ValueError, match="kind 99"):
        Decoder().decode(b"\x63")
    with pytest.raises(ValueError, match="requires a buffer"):
        Decoder().decode(b"\x04")
