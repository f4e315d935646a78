"""Checking runs: a sound one is accepted, a bad one is told by record, field and value."""

import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import InvalidRecord, MessageTooLarge
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import Host, encode_run
from pocketmq.proto.run import check_run

_HOST = Host.parse("127.0.0.1", 8081)


def _run(count: int = 3, body: bytes = b"body") -> tuple[bytes, list[int]]:
    messages = [(body, encode_properties({"KEYS": f"k{index}"})) for index in range(count)]
    return encode_run("T", 2, messages, born_timestamp_ms=7, born_host=_HOST)


def test_a_sound_run_is_accepted() -> None:
    data, sizes = _run()

    assert len(check_run(data, sizes, "T", 2)) == 3


@pytest.mark.parametrize(
    ("at", "value", "field"),
    [
        (4, b"\x00", "magicCode"),
        (0, b"\x00\x00\x00\x5c", "totalSize"),
        (8, b"\x00\x00\x00\x00", "bodyCRC"),
        (12, b"\x00\x00\x00\x09", "queueId"),
        (84, b"\x00\x00\x00\x00", "bodyLength"),
        (84, b"\xff\xff\xff\xff", "bodyLength"),
        (88, b"BODY", "bodyCRC"),
        (93, b"U", "topic"),
        (94, b"\xff\xff", "propertiesLength"),
        (94, b"\x00\x01", "totalSize"),
    ],
)
def test_a_bad_field_of_the_second_record_is_named(at: int, value: bytes, field: str) -> None:
    data, sizes = _run()
    at += sizes[0]
    bad = data[:at] + value + data[at + len(value) :]

    with pytest.raises(InvalidRecord) as raised:
        check_run(bad, sizes, "T", 2)

    assert raised.value.details["field"] == field
    assert raised.value.details["index"] == "1"


@pytest.mark.parametrize("sizes", [[], [1], [0, 0], [-1], [10**9]])
def test_sizes_that_do_not_fit_the_bytes_are_refused(sizes: list[int]) -> None:
    with pytest.raises(InvalidRecord, match="sizes"):
        check_run(_run()[0], sizes, "T", 2)


def test_a_body_over_the_limit_is_refused() -> None:
    data, sizes = _run(1, bytes(4 * 1024 * 1024 + 1))

    with pytest.raises(MessageTooLarge, match="4194304"):
        check_run(data, sizes, "T", 2)


@given(st.data())
def test_a_mutated_run_is_accepted_or_refused_by_name(data: st.DataObject) -> None:
    run, sizes = _run()
    bad = bytearray(run)
    at = data.draw(st.integers(0, len(bad) - 1))
    bad[at] ^= data.draw(st.integers(1, 255))

    try:
        check_run(bytes(bad), sizes, "T", 2)
    except (InvalidRecord, MessageTooLarge) as error:
        assert error.details["field"]
