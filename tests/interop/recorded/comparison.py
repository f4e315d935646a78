"""Two answers to one call held against each other: what Apache's broker said, and what ours says.

Compared are the gRPC status, when which message of the answer came, to the second, which fields are there, and what
stands in those that the README of the recordings does not list as varying. Texts of errors are
ours, but where programs read them: one of Apache's that begins with its code's name, or tells a bound of the invisible
duration, is how ours with that code begins. A difference is a line:

    status.code: INTERNAL_SERVER_ERROR → TOPIC_NOT_FOUND      theirs, ours; "-" is a field that is not there
    message …75: comes | is missing                           a message that only we delivered, or only they
    check …7D: comes | is missing                             a question for the outcome of a transaction
    after 2.2 s: comes sooner                                 the answer's first message
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import json_format

from .calls import Answer
from .documents import Case, digest

_TOLERANCE_MS: Final = 1_000
#: Their presence counts alone.
_VARYING: Final = {
    "born_timestamp",
    "store_timestamp",
    "delivery_timestamp",
    "receipt_handle",
    "recall_handle",
    "store_host",
    "born_host",
    "queue_offset",
    "nonce",
}
#: Texts, and numbers whose zero looks as if they were not there.
_LEFT_OUT: Final = {"queue_id", "offset"}
_ABSENT: Final = "-"
_INVISIBLE: Final = "the invisibleTime is "
_CHECK: Final = "recover_orphaned_transaction_command"


def differences(case: Case, answer: Answer) -> list[str]:
    """Return what ANSWER has otherwise than the recorded CASE; each thing once."""
    theirs, ours = _recorded(case), _answered(answer)
    lines = [f"grpc status: {case['grpc_status']} → {answer.status}"] * (
        case["grpc_status"] != answer.status
    )
    compare = _compare_deliveries if case["rpc"] == "ReceiveMessage" else _compare_items
    lines += compare(theirs, ours)
    return list(dict.fromkeys(lines))


Item = tuple[int, dict[str, Any]]


def _recorded(case: Case) -> list[Item]:
    events = case.get("events")
    if events is None:
        return [(item["at_ms"], item["body"]) for item in case["responses"]]
    return [(item["at_ms"], item["body"]) for item in events if item["from"] == "server"]


def _answered(answer: Answer) -> list[Item]:
    return [
        (at_ms, json_format.MessageToDict(message, preserving_proto_field_name=True))
        for at_ms, message in answer.items
    ]


def _compare_items(theirs: list[Item], ours: list[Item]) -> Iterator[str]:
    """Compare messages one by one; settings that are sent again unchanged are a line of their own."""
    answered, answers = (sum("settings" in body for _, body in items) for items in (theirs, ours))
    once = _without_repeats(ours, answers - answered)
    if len(once) < len(ours):
        yield "settings: come again"
    yield from _compare_checks(_checks(theirs), _checks(once))
    theirs, once = ([item for item in items if _CHECK not in item[1]] for items in (theirs, once))
    for their, our in zip(theirs, once, strict=False):
        yield from _compare_times(their, our)
        yield from _compare_fields("", their[1], our[1])
    for _, body in theirs[len(once) :]:
        yield f"{_kind(body)}: is missing"
    for _, body in once[len(theirs) :]:
        yield f"{_kind(body)}: comes"


def _without_repeats(items: list[Item], count: int) -> list[Item]:
    """Return ITEMS without the last COUNT settings that only repeat those before them."""
    kept = list(items)
    for position in reversed(range(1, len(items))):
        body = items[position][1]
        before = [one for _, one in items[:position] if "settings" in one]
        if count > 0 and "settings" in body and body in before[-1:]:
            del kept[position]
            count -= 1
    return kept


Key = tuple[str, int]


def _checks(items: list[Item]) -> dict[Key, Item]:
    """Return the checks of transactions in ITEMS by transaction, and the how manieth of it each is."""
    found: dict[Key, Item] = {}
    for item in items:
        if _CHECK in item[1]:
            name = item[1][_CHECK]["transaction_id"]
            found[name, sum(key[0] == name for key in found)] = item
    return found


def _compare_checks(theirs: dict[Key, Item], ours: dict[Key, Item]) -> Iterator[str]:
    yield from _compare_keys("check", theirs, ours)
    for key in theirs.keys() & ours.keys():
        yield from _compare_times(theirs[key], ours[key])
        yield from _compare_fields("", theirs[key][1], ours[key][1])


def _compare_keys(what: str, theirs: dict[Key, Any], ours: dict[Key, Any]) -> Iterator[str]:
    for key in theirs.keys() - ours.keys():
        yield f"{what} …{key[0][-2:]}: is missing"
    for key in ours.keys() - theirs.keys():
        yield f"{what} …{key[0][-2:]}: comes"


def _kind(body: dict[str, Any]) -> str:
    return next((name for name in body if name != "status"), "status")


def _compare_times(their: Item, our: Item) -> Iterator[str]:
    if abs(their[0] - our[0]) >= _TOLERANCE_MS:
        yield f"after {their[0] / 1000:.1f} s: comes {'later' if our[0] > their[0] else 'sooner'}"


def _compare_deliveries(theirs: list[Item], ours: list[Item]) -> Iterator[str]:
    """Compare two streams of received messages: message by message, by their ids."""
    shapes = [_shape(items) for items in (theirs, ours)]
    if shapes[0] != shapes[1]:
        yield f"stream: {shapes[0]} → {shapes[1]}"
    if theirs and ours:
        yield from _compare_times(theirs[0], ours[0])
        yield from _compare_fields("", _first(theirs), _first(ours))
    delivered = _by_id(theirs), _by_id(ours)
    both = [[key for key in one if key in other] for one, other in (delivered, delivered[::-1])]
    if both[0] != both[1] and _in_one_queue(theirs) and _in_one_queue(ours):
        yield f"order: {_order(both[0])} → {_order(both[1])}"
    yield from _compare_keys("message", *delivered)
    for key in delivered[0].keys() & delivered[1].keys():
        yield from _compare_fields("message", delivered[0][key], delivered[1][key])


def _shape(items: list[Item]) -> str:
    """Return the kinds of message in ITEMS, in their order."""
    return " ".join(dict.fromkeys(next(iter(body)) for _, body in items))


def _first(items: list[Item]) -> dict[str, Any]:
    return items[0][1] if "status" in items[0][1] else {}


def _by_id(items: list[Item]) -> dict[Key, dict[str, Any]]:
    """Return the messages in ITEMS by their id, and the how manieth of that id each is."""
    found: dict[Key, dict[str, Any]] = {}
    for _, body in items:
        if "message" in body:
            name = body["message"]["system_properties"]["message_id"]
            again = sum(key[0] == name for key in found)
            found[name, again] = body["message"]
    return found


def _in_one_queue(items: list[Item]) -> bool:
    queues = {
        body["message"]["system_properties"].get("queue_id", 0)
        for _, body in items
        if "message" in body
    }
    return len(queues) == 1


def _order(delivered: list[Key]) -> str:
    return " ".join(name[-2:] for name, _ in delivered)


def _compare_fields(path: str, theirs: Any, ours: Any) -> Iterator[str]:
    """Yield the fields below PATH that differ; of a list, without their positions."""
    if path.endswith("user_properties"):
        theirs, ours = theirs or {}, ours or {}
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for name in [*theirs, *(name for name in ours if name not in theirs)]:
            if name in _LEFT_OUT:
                continue
            if name == "message" and path.endswith("status"):
                yield from _compare_texts(path, theirs, ours)
                continue
            below = f"{path}.{name}" if path else name
            yield from _compare_field(below, name, theirs.get(name), ours.get(name))
    elif isinstance(theirs, list) and isinstance(ours, list):
        if len(theirs) != len(ours):
            yield f"{path}: {len(theirs)} → {len(ours)}"
        for their, our in zip(theirs, ours, strict=False):
            yield from _compare_fields(f"{path}[]", their, our)
    elif theirs != ours:
        yield f"{path}: {_shown(theirs)} → {_shown(ours)}"


def _compare_texts(path: str, theirs: dict[str, str], ours: dict[str, str]) -> Iterator[str]:
    """Compare the texts of two statuses."""
    code, text = theirs["code"], theirs.get("message", "")
    is_read = text.startswith((code, _INVISIBLE)) and code == ours.get("code") != "OK"
    if is_read and not ours.get("message", "").startswith(text):
        yield f"{path}.message: {text} → {ours.get('message', '')}"


def _compare_field(path: str, name: str, their: Any, our: Any) -> Iterator[str]:
    if name in _VARYING:
        if (their is None) != (our is None):
            yield f"{path}: {_shown(their and '*')} → {_shown(our and '*')}"
    elif name == "body" and isinstance(their, str) and isinstance(our, str):
        yield from _compare_fields(path, digest(their), digest(our))
    else:
        yield from _compare_fields(path, their, our)


def _shown(value: Any) -> str:
    if value is None:
        return _ABSENT
    return "{…}" if isinstance(value, dict | list) else str(value)
