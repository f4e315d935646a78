"""The bytes of the table of deliveries."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from pocketmq.broker.pop.deliveries import (
    DeliveryChange,
    DeliveryTable,
    FoundQueue,
    InFlight,
    PopKey,
    finished,
    forgotten,
    in_flight,
    looked,
    shifted,
)
from pocketmq.store.format.table_frames import CLEAR_ALL, PUT, entry
from pocketmq.store.tables import TableChange

KEY = PopKey("g", "T", 3)
OFFSETS = st.integers(0, 2**63 - 1)
KEYS = st.builds(PopKey, st.text(max_size=20), st.text(max_size=20), st.integers(0, 2**31 - 1))
DELIVERIES = st.builds(
    InFlight,
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=20),
    st.integers(0, 2**64 - 1),
    st.booleans(),
    st.text(max_size=20),
)
CHANGES = st.one_of(
    st.builds(in_flight, KEYS, OFFSETS, DELIVERIES),
    st.builds(finished, KEYS, OFFSETS),
    st.builds(looked, KEYS, OFFSETS),
    st.builds(forgotten, KEYS),
    st.just(TableChange(CLEAR_ALL)),
)


@pytest.mark.slow
@given(st.lists(CHANGES, max_size=40))
def test_changes_are_read_as_they_were_written(changes: list[DeliveryChange]) -> None:
    table = DeliveryTable()

    assert table.decode(table.encode(changes)) == changes


def test_bytes_are_those_of_version_1() -> None:
    delivery = InFlight(2, 1_000, "c", 0xABC, True, "at")
    changes = [in_flight(KEY, 7, delivery), in_flight(KEY, 8, delivery), looked(KEY, 9)]

    data = DeliveryTable().encode([*changes, finished(KEY, 7), forgotten(KEY)])

    scope = "00 00 00 03 00 01 67 54"
    standing = "00 00 00 02 00 00 00 00 00 00 03 e8 00 00 00 00 00 00 0a bc"
    assert data.hex(" ") == (
        f"03 00 00 00 00 00 08 {scope}"
        f" 01 00 08 00 00 00 1c 00 00 00 00 00 00 00 07 {standing} 03 00 01 00 02 63 61 74"
        f" 01 00 08 00 00 00 15 00 00 00 00 00 00 00 08 {standing} 01"
        " 01 00 00 00 00 00 08 00 00 00 00 00 00 00 09"
        " 02 00 08 00 00 00 00 00 00 00 00 00 00 00 07"
        f" 04 00 00 00 00 00 08 {scope}"
    )


def test_an_owner_is_told_once_in_each_section() -> None:
    table, delivery = DeliveryTable(), InFlight(1, 2, "client", 3, False, "attempt")
    other = delivery._replace(owner="another")
    changes = [in_flight(KEY, n, one) for n, one in enumerate([delivery, delivery, other, other])]

    data = table.encode(changes)

    assert data.count(b"clientattempt") == data.count(b"anotherattempt") == 1
    assert table.decode(data) == changes
    # A section of a snapshot has several encoded pieces.
    assert table.decode(data + data) == changes * 2


def test_a_delivery_without_an_owner_gets_none_from_the_piece_before_it() -> None:
    table, delivery = DeliveryTable(), InFlight(1, 2, "client", 3, False, "attempt")
    changes = [in_flight(KEY, 1, delivery), in_flight(KEY, 2, InFlight(1, 2, "", 4, False))]

    pieces = [table.encode([change]) for change in changes]

    assert table.decode(b"".join(pieces)) == changes


@pytest.mark.parametrize(
    "data",
    [
        b"\x01",
        entry(PUT, bytes(8), bytes(21)),
        DeliveryTable().encode([finished(KEY, 1)]) + entry(PUT, bytes(7), bytes(21)),
        DeliveryTable().encode([finished(KEY, 1)]) + entry(PUT, bytes(8), bytes(20)),
        DeliveryTable().encode([finished(KEY, 1)]) + entry(PUT, b"", bytes(7)),
    ],
    ids=["no entry", "of no queue", "short key", "short value", "short place"],
)
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|no queue|requires a buffer"):
        DeliveryTable().decode(data)


def test_instants_are_shifted_and_places_are_not() -> None:
    delivery = InFlight(1, 1_000, "c", 5, False)
    table = DeliveryTable()
    table.change_all([in_flight(KEY, 7, delivery), looked(KEY, 8)])

    table.shift(-300)

    assert table.found() == {KEY: FoundQueue(8, {7: delivery._replace(until_ms=700)})}
    assert shifted(in_flight(KEY, 7, delivery), 5).value == delivery._replace(until_ms=1_005)
    assert shifted(looked(KEY, 8), 5) == looked(KEY, 8)
    assert shifted(finished(KEY, 8), 5) == finished(KEY, 8)


def test_a_table_tells_the_changes_since_it_was_asked_last() -> None:
    table = DeliveryTable()
    table.change_all([looked(KEY, 1)])
    assert table.take_watched() == []
    table.change_all([looked(KEY, 2)])
    table.keep_elsewhere(lambda: iter(()))
    table.change_all([looked(KEY, 3), finished(KEY, 1)])
    assert table.take_watched() == [looked(KEY, 2), looked(KEY, 3), finished(KEY, 1)]
    assert table.take_watched() == []
