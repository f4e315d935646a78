"""A record from the files as JSON with RocketMQ's names, and as lines for people."""

from __future__ import annotations

from typing import Any

from ...proto.errors import PocketMQError
from ...proto.properties import KEYS, SHARDING_KEY, TAGS, UNIQ_KEY
from ...proto.record import Record, decompress_body
from ..output import body_fields, instant, print_pairs
from .log_files import Stored


def message_row(stored: Stored, broker: str) -> dict[str, Any]:
    """Return STORED as JSON shows it; what a message does not have is null.

    `body` is text, or null with `bodyBase64`, or with `bodyFault` for what cannot be decompressed.
    """
    record = stored.record
    return {
        "brokerName": broker,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "physicalOffset": stored.log_offset,
        "storeSize": len(stored.data),
        "storeTimestamp": record.store_timestamp_ms,
        "bornTimestamp": record.born_timestamp_ms,
        "bornHost": str(record.born_host),
        "storeHost": str(record.store_host),
        "flag": record.flag,
        "sysFlag": record.sys_flag,
        "reconsumeTimes": record.reconsume_times,
        "bodyCrc": record.body_crc,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "messageId": record.properties.get(UNIQ_KEY),
        "offsetMessageId": record.message_id,
        "tags": record.properties.get(TAGS),
        "keys": record.properties.get(KEYS),
        "shardingKey": record.properties.get(SHARDING_KEY),
        "properties": dict(record.properties),
        **_body(record),
        "file": stored.path,
        "faults": list(stored.faults),
    }


def _body(record: Record) -> dict[str, str | None]:
    try:
        fields = body_fields(decompress_body(record.body, record.sys_flag))
    except PocketMQError as error:
        return {"body": None, "bodyFault": error.message}
    if "body_base64" in fields:
        fields["bodyBase64"] = fields.pop("body_base64")
    return fields


def print_stored(stored: Stored, broker: str) -> None:
    """Print STORED for people."""
    record = stored.record
    fields, size = _body(record), len(stored.data)
    body = fields["body"]
    if body is None:
        body = fields.get("bodyFault") or f"{len(record.body):,} bytes, no text"
    print_pairs(
        {
            "topic": record.topic,
            "place": f"broker {broker}, queue {record.queue_id}, offset {record.queue_offset}",
            "stored": f"{instant(record.store_timestamp_ms)}, {size:,} bytes",
            "log": f"offset {stored.log_offset:,} in {stored.path}",
            "born": f"{instant(record.born_timestamp_ms)} on {record.born_host}",
            "id": record.properties.get(UNIQ_KEY, "-"),
            "offset id": record.message_id,
            "keys": record.properties.get(KEYS, "-"),
            "tag": record.properties.get(TAGS, "-"),
            **({"tries": str(record.reconsume_times)} if record.reconsume_times else {}),
            **({"faults": "; ".join(stored.faults)} if stored.faults else {}),
            "body": body,
        }
    )
