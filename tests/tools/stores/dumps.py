"""Rows of the datasets as Apache's own description of a recorded store has them."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
_SAME = (
    "physicalOffset",
    "storeSize",
    "topic",
    "queueId",
    "queueOffset",
    "flag",
    "sysFlag",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "properties",
)


def described(records: Iterable[Row]) -> list[dict[str, Any]]:
    """Return what Apache says of RECORDS, in the form of `of_messages`."""
    rows = []
    for record in records:
        row = {name: record[name] for name in _SAME}
        row |= {
            "bodyCrc": record["bodyCRC"],
            "bornHost": _host(record["bornHost"]),
            "storeHost": _host(record["storeHost"]),
            "bornMs": record["bornTimestamp"],
            "storeMs": record["storeTimestamp"],
            "bodySha256": record["bodySha256"],
            "messageId": record["properties"].get("UNIQ_KEY", record["msgId"]),
            "tags": record["properties"].get("TAGS"),
            "keys": record["properties"].get("KEYS"),
            "shardingKey": record["properties"].get("__SHARDINGKEY"),
        }
        rows.append(row)
    return rows


def of_messages(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Return ROWS of the dataset `messages`, with times as numbers and bodies as their hashes."""
    found = []
    for row in rows:
        made = {name: row[name] for name in (*_SAME, "bodyCrc", "messageId", "tags", "keys")}
        made |= {
            "properties": dict(row["properties"]),
            "shardingKey": row["shardingKey"],
            "bornHost": row["bornHost"],
            "storeHost": row["storeHost"],
            "bornMs": round(row["bornTimestamp"].timestamp() * 1000),
            "storeMs": round(row["storeTimestamp"].timestamp() * 1000),
            "bodySha256": hashlib.sha256(row["body"]).hexdigest(),
        }
        found.append(made)
    return found


def _host(text: str) -> str:
    """Return Java's text of an address and port in ours: brackets around IPv6, zeros left out."""
    address, _, port = text.rpartition(":")
    found = ipaddress.ip_address(address)
    return f"[{found}]:{port}" if found.version == 6 else f"{found}:{port}"
