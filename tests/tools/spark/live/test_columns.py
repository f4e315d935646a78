"""Columns of the live source: ours, and Kafka's names for them."""

import zlib
from datetime import UTC, datetime

import pytest

from pocketmq.client.received_message import FetchedRun
from pocketmq.proto.errors import ConfigError, OffsetOutOfRange
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import NO_HOST, SYS_COMPRESSED, encode_run
from pocketmq.tools.spark.live.columns import Layout, live_schema
from pocketmq.tools.spark.live.losses import Losses
from pocketmq.tools.spark.live.range_reading import Fetched

pytest.importorskip("pyarrow")

BORN_MS = 1_700_000_000_000


def part(*bodies: bytes, sys_flag: int = 0, begin: int = 0) -> Fetched:
    """Return the messages from index BEGIN on of a run with BODIES."""
    properties = encode_properties({"TAGS": "red", "KEYS": "k1 k2", "colour": "é"})
    records, _ = encode_run(
        "orders",
        2,
        [(body, properties) for body in bodies],
        born_timestamp_ms=BORN_MS,
        born_host=NO_HOST,
        sys_flag=sys_flag,
    )
    return Fetched(FetchedRun("broker-a", records), begin, len(bodies))


def test_a_batch_has_the_columns_asked_for_in_their_order() -> None:
    layout = Layout.of(["body", "topic", "born_timestamp", "queue"], "rocketmq")

    batch = layout.batch(part(b"a", b"b", b"c", begin=1), Losses(True))

    assert batch.schema == layout.schema()
    assert batch.to_pydict() == {
        "body": [b"b", b"c"],
        "topic": ["orders"] * 2,
        "born_timestamp": [datetime.fromtimestamp(BORN_MS / 1000, UTC)] * 2,
        "queue": [2, 2],
    }


def test_all_columns_fit_their_schema() -> None:
    layout = Layout.of(live_schema("rocketmq").names, "rocketmq")

    batch = layout.batch(part(b"a"), Losses(True))

    assert batch.schema == live_schema("rocketmq")
    batch.validate(full=True)


def test_kafkas_columns_are_made_of_ours() -> None:
    layout = Layout.of(live_schema("kafka", headers=True).names, "kafka")

    batch = layout.batch(part(b"x", b"a", begin=1), Losses(True))
    (row,) = batch.to_pylist()

    assert batch.schema == live_schema("kafka", headers=True)
    batch.validate(full=True)
    assert (row["key"], row["value"], row["topic"]) == (b"k1 k2", b"a", "orders")
    assert (row["partition"], row["offset"], row["timestampType"]) == (2, 0, 1)
    headers = {one["key"]: one["value"] for one in row["headers"]}
    assert headers == {"TAGS": b"red", "KEYS": b"k1 k2", "colour": "é".encode()}


def test_kafkas_jobs_get_headers_only_if_they_ask() -> None:
    assert "headers" not in live_schema("kafka").names


def test_a_body_that_cannot_be_decompressed_is_a_loss() -> None:
    layout = Layout.of(["body"], "rocketmq")
    bad = part(zlib.compress(b"good"), b"no zlib", sys_flag=SYS_COMPRESSED)

    with pytest.raises(OffsetOutOfRange, match="broker-a"):
        layout.batch(bad, Losses(True))
    assert layout.batch(bad, Losses(False)).to_pydict() == {"body": [b"good"]}


@pytest.mark.parametrize(
    ("name", "style"), [("colour", "rocketmq"), ("bad_record", "rocketmq"), ("body", "kafka")]
)
def test_a_column_that_is_not_there_is_named(name: str, style: str) -> None:
    with pytest.raises(ConfigError, match=name):
        Layout.of([name], style)
