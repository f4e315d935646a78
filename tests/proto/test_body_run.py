"""Runs from lists of bodies: the same bytes as one record after the other."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.body_run import BodyOrigin, encode_bodies
from pocketmq.proto.message_id import UniqueIds
from pocketmq.proto.properties import decode_properties
from pocketmq.proto.record import Host, encode_run
from pocketmq.proto.run import check_run

V4 = Host.parse("10.1.2.3", 0)
V6 = Host.parse("fe80::1", 0)


def ids(seed: int = 1) -> UniqueIds:
    return UniqueIds(lambda: 1_700_000_000_000, 4711, Random(seed))


@st.composite
def rows(draw: st.DrawFn) -> list[tuple[bytes, bytes, int]]:
    """Bodies with a key and a sysFlag each."""
    body = st.binary(min_size=1, max_size=300) | st.just(b"x" * 128)
    key = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zs"]), min_size=1, max_size=9)
    one = st.tuples(body, key.map(str.encode), st.sampled_from([0, 0x301]))
    return draw(st.lists(one, min_size=1, max_size=40))


@given(
    rows(),
    st.sampled_from(["T", "orders", "t" * 127, "t" * 200]),
    st.sampled_from([b"", b"TAGS\x01t\x02"]),
    st.sampled_from([b"", b"PRODUCER_SEQUENCE\x01a:0:0:5\x02"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([V4, V6]),
)
def test_a_run_of_bodies_is_the_run_of_their_records(
    rows: list[tuple[bytes, bytes, int]],
    topic: str,
    properties: bytes,
    first_extra: bytes,
    with_keys: bool,
    with_flags: bool,
    host: Host,
) -> None:
    bodies = [body for body, _, _ in rows]
    flags = [flag for _, _, flag in rows] if with_flags else None
    made = ids().row(len(rows))
    strings = [
        b"UNIQ_KEY\x01%s\x02" % unique
        + (first_extra if index == 0 else b"")
        + properties
        + (b"KEYS\x01%s\x02" % key if with_keys else b"")
        for index, (unique, (_, key, _)) in enumerate(zip(made, rows, strict=True))
    ]
    expected = encode_run(
        topic,
        3,
        zip(bodies, strings, strict=True),
        born_timestamp_ms=77,
        born_host=host,
        sys_flag=flags or 0,
    )

    data, sizes = encode_bodies(
        BodyOrigin(topic, 3, 77, host, properties),
        bodies,
        made,
        keys=[key for _, key, _ in rows] if with_keys else None,
        first_extra=first_extra,
        sys_flags=flags,
    )

    assert (data, sizes) == expected


def test_a_broker_takes_such_a_run() -> None:
    bodies = [b"%d" % number * 5 for number in range(5_000)]
    made = ids().row(5_000)

    data, sizes = encode_bodies(BodyOrigin("orders", 3, 77, V4), bodies, made)

    columns = check_run(data, sizes, "orders", 3).columns
    begins, lengths = columns.properties_start.tolist(), columns.properties_size.tolist()
    found = [
        decode_properties(data[begin : begin + size])["UNIQ_KEY"].encode()
        for begin, size in zip(begins, lengths, strict=True)
    ]
    assert found == list(made)


@pytest.mark.parametrize("first", [0, 0xFFFF_FFF0])
def test_a_row_of_ids_is_what_the_ids_are_one_by_one(first: int) -> None:
    made, single = ids(), ids()
    made._counter = single._counter = first

    row = made.row(40)

    singly = [single.next().encode() for _ in range(40)]
    assert list(row) == singly
    assert [row[index] for index in range(-40, 0)] == singly
    assert list(row[7:19]) == singly[7:19]
    assert [row.head + bytes(digits) for digits in row.digits()] == singly
    assert [bytes(digits) for digits in row[30:].digits()] == [one[-8:] for one in singly[30:]]
    with pytest.raises(IndexError):
        row[40]
