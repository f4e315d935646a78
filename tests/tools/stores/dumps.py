"""Rows of the datasets as Apache's own description of a recorded store has them."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
#: Columns, and Apache's names of them.
_SAME = {
    "log_offset": "physicalOffset",
    "store_size": "storeSize",
    "topic": "topic",
    "queue": "queueId",
    "queue_offset": "queueOffset",
    "flag": "flag",
    "sys_flag": "sysFlag",
    "reconsume_times": "reconsumeTimes",
    "prepared_transaction_offset": "preparedTransactionOffset",
    "properties": "properties",
}


def described(records: Iterable[Row]) -> list[dict[str, Any]]:
    """Return what Apache says of RECORDS, in the form of `of_messages`."""
    rows = []
    for record in records:
        row = {name: record[theirs] for name, theirs in _SAME.items()}
        row |= {
            "body_crc": record["bodyCRC"],
            "born_host": _host(record["bornHost"]),
            "store_host": _host(record["storeHost"]),
            "born_ms": record["bornTimestamp"],
            "stored_ms": record["storeTimestamp"],
            "body_sha256": record["bodySha256"],
            "message_id": record["properties"].get("UNIQ_KEY", record["msgId"]),
            "tags": record["properties"].get("TAGS"),
            "keys": record["properties"].get("KEYS"),
            "sharding_key": record["properties"].get("__SHARDINGKEY"),
        }
        rows.append(row)
    return rows


def of_messages(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return ROWS of the dataset `messages`, with times as numbers and bodies as their hashes."""
    found = []
    for row in rows:
        made = {name: row[name] for name in (*_SAME, "body_crc", "message_id", "tags", "keys")}
        made |= {
            "properties": dict(row["properties"]),
            "sharding_key": row["sharding_key"],
            "born_host": row["born_host"],
            "store_host": row["store_host"],
            "born_ms": round(row["born_timestamp"].timestamp() * 1000),
            "stored_ms": round(row["store_timestamp"].timestamp() * 1000),
            "body_sha256": hashlib.sha256(row["body"]).hexdigest(),
        }
        found.append(made)
    return found


def _host(text: str) -> str:
    """Return Java's text of an address and port in ours: brackets around IPv6, zeros left out."""
    address, _, port = text.rpartition(":")
    found = ipaddress.ip_address(address)
    return f"[{found}]:{port}" if found.version == 6 else f"{found}:{port}"
