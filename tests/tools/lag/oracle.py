"""The lag of a store, counted again message by message from Apache's own description of it."""

from __future__ import annotations

from typing import Any

PRE_BLANK = (1 << 31) - 1


def recount(document: dict[str, Any], now_ms: int) -> dict[tuple[str, int, str], dict[str, Any]]:
    """Return what is to be said of every committed offset of DOCUMENT, by topic, queue and group."""
    queues = {(queue["topic"], queue["queueId"]): queue for queue in document["queues"]}
    records = {record["physicalOffset"]: record for record in document["records"]}
    found = {}
    for key, offsets in document["config"]["consumerOffsets"].items():
        topic, at, group = key.partition("@")
        if not at:
            continue
        for number, offset in offsets.items():
            place = (topic, int(number))
            queue = queues.get(place) or _configured(document, *place)
            found[*place, group] = _row(queue, records, offset, now_ms)
    return found


def _configured(document: dict[str, Any], topic: str, queue_id: int) -> dict[str, Any] | None:
    config = document["config"]["topics"].get(topic)
    if config is None or queue_id >= max(config["readQueueNums"], config["writeQueueNums"]):
        return None
    return {"minOffset": 0, "maxOffset": 0, "entries": []}


def _row(
    queue: dict[str, Any] | None,
    records: dict[int, dict[str, Any]],
    offset: int,
    now_ms: int,
) -> dict[str, Any]:
    if queue is None:
        return {
            "committed_offset": offset,
            "min_offset": None,
            "max_offset": None,
            "lag": None,
            "lag_bytes": None,
            "oldest_unread_age_ms": None,
        }
    lag_bytes = 0
    oldest = None
    for entry in queue["entries"]:
        count = entry[4] if len(entry) > 4 else 1
        if entry[0] + count <= offset or entry[2] == PRE_BLANK:
            continue
        lag_bytes += entry[2]
        record = records.get(entry[1])
        if oldest is None and record is not None and record["storeSize"] == entry[2]:
            oldest = now_ms - record["storeTimestamp"]
    return {
        "committed_offset": offset,
        "min_offset": queue["minOffset"] if queue["minOffset"] >= 0 else None,
        "max_offset": queue["maxOffset"],
        "lag": max(0, queue["maxOffset"] - max(offset, queue["minOffset"])),
        "lag_bytes": lag_bytes,
        "oldest_unread_age_ms": oldest,
    }
