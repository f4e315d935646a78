"""Batches of messages hold what Apache's own decoder finds in the same records."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from pocketmq.proto.errors import ConfigError, CorruptRecord
from pocketmq.proto.properties import decode_properties
from pocketmq.proto.record import SYS_COMPRESSED, Record, encode_record
from pocketmq.proto.record_run import parse_run, walk
from pocketmq.store import OsDisk
from pocketmq.store.listing import row_files, zeros_from
from pocketmq.store.log_range import LogRange, PlacedRecords
from pocketmq.tools.stores.scan.message_columns import MessageColumns
from pocketmq.tools.stores.schemas import projected, schema_of

from ....recorded import expected, recorded_names, recorded_store
from ..dumps import described, of_messages

SOUND = [name for name in recorded_names() if not name.startswith("damaged-")]


def rows_of(records: list[bytes], *names: str, decompress: bool = True) -> list[dict[str, Any]]:
    """Return RECORDS as rows with the columns NAMES."""
    data = b"".join(records)
    columns = parse_run(data, walk(data)[0])
    made = MessageColumns(projected("messages", names), "broker-a", decompress=decompress)
    rows: list[dict[str, Any]] = made.batch(np.frombuffer(data, np.uint8), columns).to_pylist()
    return rows


def a_record(properties: bytes = b"", body: bytes = b"body", sys_flag: int = 0) -> bytes:
    return encode_record(
        Record(topic="T", body=body, sys_flag=sys_flag), property_string=properties
    )


@pytest.mark.parametrize("name", SOUND)
def test_a_recorded_log_has_the_rows_that_apache_finds(name: str, tmp_path: Path) -> None:
    store = recorded_store(name, tmp_path / "store")
    columns = MessageColumns(schema_of("messages"), "broker-a")

    rows: list[dict[str, Any]] = []
    for file in row_files(OsDisk(), str(store / "commitlog")):
        limit = zeros_from(OsDisk(), file)
        for found in LogRange(OsDisk(), file, file.start, file.end, limit=limit):
            assert isinstance(found, PlacedRecords)
            rows += columns.batch(found.data, found.columns).to_pylist()

    assert of_messages(rows) == described(expected(name)["records"])
    assert {row["broker"] for row in rows} == {"broker-a"}


@given(
    st.lists(
        st.lists(
            st.sampled_from(
                [
                    b"KEYS\x01a\x02",
                    b"KEYS\x01b\x02",
                    b"a\x01",
                    b"x\x02",
                    b"long_name_\x01v\x02",
                    b"\xff",
                ]
            )
        ).map(b"".join),
        min_size=1,
        max_size=12,
    )
)
def test_properties_are_those_of_the_decoder(strings: list[bytes]) -> None:
    rows = rows_of([a_record(one) for one in strings], "properties", "keys")

    decoded = [decode_properties(one) for one in strings]
    assert [dict(row["properties"]) for row in rows] == decoded
    assert all(len(dict(row["properties"])) == len(row["properties"]) for row in rows)
    assert [row["keys"] for row in rows] == [one.get("KEYS") for one in decoded]


def test_more_names_than_bits_are_still_told_apart() -> None:
    names = b"".join(b"name%d\x01v\x02" % number for number in range(60))

    (row, _) = rows_of([a_record(names + b"name7\x01last\x02"), a_record()], "properties")

    assert dict(row["properties"])["name7"] == "last"
    assert len(row["properties"]) == 60


def test_a_compressed_body_is_shown_as_sent_or_as_stored() -> None:
    packed = zlib.compress(b"text" * 50)
    records = [a_record(body=b"plain"), a_record(body=packed, sys_flag=SYS_COMPRESSED)]

    assert [row["body"] for row in rows_of(records, "body")] == [b"plain", b"text" * 50]
    stored = [row["body"] for row in rows_of(records, "body", decompress=False)]
    assert stored == [b"plain", packed]


def test_a_body_that_cannot_be_decompressed_is_an_error_or_left_out() -> None:
    data = a_record(body=b"no zlib", sys_flag=SYS_COMPRESSED) + a_record(body=b"fine")
    columns = parse_run(data, walk(data)[0])
    made = MessageColumns(projected("messages", ["body"]), "b")
    array = np.frombuffer(data, np.uint8)
    refused: list[tuple[int, str]] = []

    batch = made.batch(array, columns, refused.extend)

    assert batch.to_pylist() == [{"body": b"fine"}]
    assert [row for row, _ in refused] == [0]
    with pytest.raises(CorruptRecord, match="cannot be decompressed"):
        made.batch(array, columns)


def test_what_is_decompressed_at_a_time_is_bounded() -> None:
    packed = zlib.compress(bytes(1000))
    data = a_record(body=packed, sys_flag=SYS_COMPRESSED) * 5
    columns = parse_run(data, walk(data)[0])
    made = MessageColumns(projected("messages", ["body"]), "b")
    counts = []
    while len(columns):
        batch, count = made.leading(np.frombuffer(data, np.uint8), columns, bodies_max=1_500)
        assert batch.num_rows == count
        counts.append(count)
        columns = columns.take(slice(count, None))

    assert counts == [2, 2, 1]


def test_a_message_without_an_id_of_its_own_has_the_offset_id() -> None:
    rows = rows_of([a_record(), a_record(b"UNIQ_KEY\x01mine\x02")], "message_id")

    assert [row["message_id"] for row in rows] == ["0" * 32, "mine"]


def test_a_time_beyond_64_bits_of_microseconds_is_not_known() -> None:
    record = encode_record(Record(topic="T", body=b"", born_timestamp_ms=1 << 62))

    assert rows_of([record], "born_timestamp") == [{"born_timestamp": None}]


def test_an_unknown_column_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match="no column 'offset': it has broker, topic"):
        projected("messages", ["offset"])


def test_no_records_make_an_empty_batch() -> None:
    made = MessageColumns(schema_of("messages", ("raw_properties",)), "b")

    batch = made.batch(np.zeros(0, np.uint8), parse_run(b"", np.zeros(0, np.int64)))

    assert batch.num_rows == 0
