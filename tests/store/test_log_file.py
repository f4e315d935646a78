"""Records are found at any byte, by their own log offset."""

from __future__ import annotations

import numpy as np
from hypothesis import given, strategies as st

from pocketmq.proto.record import Host, Record, encode_record
from pocketmq.store.format.log import find_run, placed_starts

HOSTS = st.sampled_from([Host.parse("10.1.2.3", 99), Host.parse("::1", 7)])


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[int]]:
    """Draw records with rubbish between them, the first byte at log offset 1,000; and where the records are."""
    data = b""
    starts = []
    for _ in range(draw(st.integers(0, 6))):
        data += draw(st.binary(max_size=20))
        record = Record(
            topic=draw(st.sampled_from(["T", "t" * 127, "t" * 200])),
            body=draw(st.binary(max_size=40)),
            born_host=draw(HOSTS),
            store_host=draw(HOSTS),
            log_offset=1_000 + len(data),
            properties={"KEYS": "k"},
        )
        starts.append(len(data))
        data += encode_record(record)
    return data + draw(st.binary(max_size=20)), starts


@given(logs())
def test_every_record_that_stands_where_it_says_is_found(log: tuple[bytes, list[int]]) -> None:
    data, starts = log

    run = find_run(np.frombuffer(data, np.uint8), 1_000)

    assert run.starts.tolist() == starts


@given(logs(), st.integers(0, 400))
def test_reading_from_any_byte_finds_the_rest(log: tuple[bytes, list[int]], begin: int) -> None:
    data, starts = log
    begin = min(begin, len(data))

    run = find_run(np.frombuffer(data[begin:], np.uint8), 1_000 + begin)

    assert (run.starts + begin).tolist() == [start for start in starts if start >= begin]


def test_a_record_of_another_place_is_none() -> None:
    data = encode_record(Record(topic="T", body=b"b", log_offset=40))

    assert not len(placed_starts(np.frombuffer(data, np.uint8), 0))


def test_a_record_in_the_body_of_another_is_not_found() -> None:
    inner = encode_record(Record(topic="T", body=b"", log_offset=88))
    outer = encode_record(Record(topic="T", body=inner, log_offset=0))

    run = find_run(np.frombuffer(outer, np.uint8), 0)

    assert placed_starts(np.frombuffer(outer, np.uint8), 0).tolist() == [0, 88]
    assert run.starts.tolist() == [0]
