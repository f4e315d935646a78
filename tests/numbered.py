"""Idempotent runs, as a producer makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pocketmq.proto.gen import pocketmq_v1_pb2 as pb
from pocketmq.proto.properties import encode_properties
from pocketmq.proto.record import encode_run

from .runs import BORN

PRODUCER = 0xABC123


def numbered_run(
    bodies: Sequence[bytes],
    first: int,
    *,
    topic: str = "T",
    queue: int = 0,
    epoch: int = 0,
    producer_id: int = PRODUCER,
    properties: Sequence[dict[str, str]] = (),
    each: bool = False,
    **fields: Any,
) -> pb.ProduceRun:
    """Return BODIES as a run that begins with number FIRST.

    PROPERTIES: of each message;  EACH: every record has its own number.
    """
    count = len(bodies)
    own = [dict(one) for one in properties] or [{} for _ in bodies]
    for row in range(count if each else 1):
        said = f"{first + row}:1" if each else f"{first}:{count}"
        own[row]["PRODUCER_SEQUENCE"] = f"{producer_id:x}:{epoch}:{said}"
    strings = [encode_properties(pairs) for pairs in own]
    records, sizes = encode_run(
        topic, queue, zip(bodies, strings, strict=True), born_timestamp_ms=1, born_host=BORN
    )
    numbers = {"producer_id": producer_id, "producer_epoch": epoch, "first_sequence": first}
    return pb.ProduceRun(
        **{"run_id": 1, "topic": topic, "queue": queue, "records": records, "sizes": sizes}  # type: ignore[arg-type]
        | numbers
        | fields
    )


def bodies(first: int, count: int, size: int = 0) -> list[bytes]:
    """Return bodies that say their number."""
    return [b"%d" % number + b"." * size for number in range(first, first + count)]
