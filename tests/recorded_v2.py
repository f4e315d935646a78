"""Calls of `apache.rocketmq.v2` that a real Apache RocketMQ 5.5.0 answered, and sessions of its official clients.

`tests/fixtures/v2.tar.xz` holds the documents and, in v2/README.md, what they mean.
"""

import base64
import functools
import json
from collections.abc import Iterator
from typing import Any

from tests.recorded import unpacked


@functools.cache
def recorded_group(name: str) -> dict[str, Any]:
    """Return the document NAME ("ack", "session-go-fifo"); not to be changed."""
    document: dict[str, Any] = json.loads((unpacked("v2") / "v2" / f"{name}.json").read_bytes())
    return document


def recorded_groups() -> list[str]:
    """Return the names of all documents."""
    return sorted(path.stem for path in (unpacked("v2") / "v2").glob("*.json"))


def recorded_wires(name: str) -> Iterator[tuple[str, dict[str, Any], bytes]]:
    """Yield (message type, proto JSON, bytes) of every message in NAME whose bytes were kept."""
    for case in recorded_group(name).get("cases", ()):
        rpc = case["rpc"]
        if "events" in case:
            yield from _wires(((rpc, event) for event in case["events"]), "TelemetryCommand")
            continue
        if case.get("request_wire") and case["grpc_status"] != "UNKNOWN":
            yield f"{rpc}Request", case["request"], base64.b64decode(case["request_wire"])
        yield from _wires(((rpc, reply) for reply in case["responses"]), f"{rpc}Response")


def _wires(
    events: Iterator[tuple[str, dict[str, Any]]], kind: str
) -> Iterator[tuple[str, dict[str, Any], bytes]]:
    for _, event in events:
        if event.get("wire"):
            yield kind, event["body"], base64.b64decode(event["wire"])
