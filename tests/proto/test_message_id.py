"""Offset ids and unique ids."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import InvalidArgument
from pocketmq.proto.message_id import (
    UniqueIds,
    decode_offset_message_id,
    offset_message_id,
    offset_message_ids,
)


def test_the_offset_id_of_the_reference() -> None:
    assert (
        offset_message_id(bytes([192, 168, 71, 1]), 8123, 172) == "C0A8470100001FBB00000000000000AC"
    )


@given(
    st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16),
    st.integers(0, 65535),
    st.integers(0, 2**62),
)
def test_an_offset_id_comes_back(host: bytes, port: int, log_offset: int) -> None:
    assert decode_offset_message_id(offset_message_id(host, port, log_offset)) == (
        host,
        port,
        log_offset,
    )


@pytest.mark.parametrize("text", ["", "00", "G" * 32, "0" * 34, "00 " * 10 + "00", " " * 32])
def test_text_that_is_no_offset_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="32"):
        decode_offset_message_id(text)


def test_unique_ids_have_34_digits_and_never_repeat() -> None:
    ids = UniqueIds(lambda: 1_795_228_343_466, process_id=77, random=Random(1))

    made = [*(text.decode() for text in ids.many(1000)), ids.next()]

    assert len(set(made)) == 1001
    assert {len(text) for text in made} == {34}
    assert all(text.startswith("01") and text == text.upper() for text in made)
    assert int(made[0][18:26], 16) == (1_795_228_343_466 - 1_609_459_200_000) // 1000


def test_many_offset_ids_are_those_of_single_records() -> None:
    hosts = [bytes((127, 0, 0, 1, 0, 0, 42, 159)), bytes((255, 0, 16, 9, 0, 1, 0, 0))]
    offsets = [0, (1 << 62) + 5]

    rows = offset_message_ids(
        np.frombuffer(b"".join(hosts), np.uint8).reshape(2, 8), np.array(offsets, np.int64)
    )

    assert [row.tobytes().decode() for row in rows] == [
        offset_message_id(host[:4], int.from_bytes(host[4:]), offset)
        for host, offset in zip(hosts, offsets, strict=True)
    ]
