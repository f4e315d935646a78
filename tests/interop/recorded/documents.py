"""Recorded cases as they are called again: requests with long bodies written out, and names told apart."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ...recorded_v2 import recorded_group

Case = dict[str, Any]

_REPEAT: Final = re.compile(r"@repeat:([^:]+):(\d+)")
_SHA256: Final = re.compile(r"@sha256:([^:]+):(\d+)")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def cases(*groups: str) -> list[Case]:
    """Return the cases of GROUPS, in the order of their beginnings."""
    found = [case for group in groups for case in recorded_group(group)["cases"]]
    return sorted(found, key=began_ms)


def session(name: str) -> list[Case]:
    """Return the calls of the recorded session NAME as cases."""
    return [_case(call) for call in recorded_group(name)["calls"]]


def _case(call: dict[str, Any]) -> Case:
    if call["rpc"] == "Telemetry":
        return call
    said = {
        side: [one for one in call["events"] if one["from"] == side]
        for side in ("client", "server")
    }
    request = said["client"][0]["body"] if said["client"] else {}
    case = {**call, "request": request, "request_wire": None, "responses": said["server"]}
    del case["events"]
    return case


def began_ms(case: Case) -> int:
    """Return when CASE began, milliseconds since 1970."""
    return instant_ms(case["at"])


def instant_ms(text: str) -> int:
    """Return the instant of an ISO TEXT; what is finer than milliseconds is cut off."""
    when = datetime.fromisoformat(re.sub(r"(\.\d{3})\d+", r"\1", text).replace("Z", "+00:00"))
    return (when - _EPOCH) // timedelta(milliseconds=1)


def instant(timestamp_ms: int) -> str:
    """Return TIMESTAMP_MS as proto JSON has it."""
    when = _EPOCH + timedelta(milliseconds=timestamp_ms)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def long_body(text: str) -> str:
    """Return a recorded body in base64; one of which only the digest was kept, as something else of that length."""
    if repeat := _REPEAT.fullmatch(text):
        return base64.b64encode(base64.b64decode(repeat[1]) * int(repeat[2])).decode()
    if kept := _SHA256.fullmatch(text):
        return base64.b64encode(bytes(int(kept[2]))).decode()
    return text


def digest(text: str) -> str:
    """Return a recorded body, or one in base64, by digest and length where it is long."""
    if kept := _SHA256.fullmatch(text):
        return f"{kept[1]}:{kept[2]}"
    data = base64.b64decode(long_body(text))
    return text if len(data) < 1_000 else f"{hashlib.sha256(data).hexdigest()}:{len(data)}"


def names(found: list[Case]) -> tuple[set[str], set[str]]:
    """Return the topics and the groups that requests of the cases FOUND name."""
    topics: set[str] = set()
    groups: set[str] = set()
    for case in found:
        said = [event["body"] for event in case.get("events", ()) if event["from"] == "client"]
        for node in _objects([case.get("request") or {}, *said]):
            for one in [node.get("topic"), *(node.get("topics") or ())]:
                topics.add(_name(one))
            groups.add(_name(node.get("group")))
    return topics - {""}, groups - {""}


def _name(node: Any) -> str:
    return str(node.get("name", "")) if isinstance(node, dict) else ""


def _objects(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from _objects(value)
    elif isinstance(node, list):
        for value in node:
            yield from _objects(value)
