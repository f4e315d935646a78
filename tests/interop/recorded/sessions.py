"""The sessions of official clients that were recorded, called again as far as what was kept of them goes.

Of each RPC only the first calls were kept. So what is received is compared message by message where both delivered one,
and calls about messages that did not come here are not made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from pocketmq.store.format.state_tables import GroupConfig, TopicConfig

from ...recorded_names import topic
from .comparison import differences
from .documents import Case
from .replay import Replay

_MIXED: Final = ["NORMAL", "FIFO", "DELAY", "TRANSACTION"]
#: What depends on the calls that were not kept.
_INCOMPLETE: Final = ("stream:", "message …", "order:", "after ", "settings: ", "recover_")


def told_topics(cases: Iterable[Case]) -> dict[str, TopicConfig]:
    """Return the topics that route answers in CASES tell of."""
    found = {}
    for case in cases:
        for body in _answers(case) if case["rpc"] == "QueryRoute" else ():
            queues = body.get("message_queues", [])
            for queue in queues[:1]:
                kinds = queue["accept_message_types"]
                name = queue["topic"]["name"]
                found[name] = topic(name, "MIXED" if kinds == _MIXED else kinds[0], len(queues))
    return found


def told_groups(cases: Iterable[Case]) -> dict[str, GroupConfig]:
    """Return the groups that settings in CASES tell of."""
    found = {}
    for case in cases:
        for event in case.get("events", ()):
            subscription = event["body"].get("settings", {}).get("subscription", {})
            if event["from"] == "server" and subscription.get("group"):
                name = subscription["group"]["name"]
                found[name] = GroupConfig(
                    name=name, consume_message_orderly=subscription.get("fifo", False)
                )
    return found


def is_complete(case: Case, replay: Replay) -> bool:
    """Was CASE answered in the recording, and did what it is about come here too?"""
    if case["rpc"] == "Telemetry":
        return True
    answered = case.get("grpc_status") == "OK" and replay.answers[case["id"]].status != ""
    return answered and all(replay.knows(handle) for handle in _handles(case["request"]))


def session_differences(case: Case, replay: Replay) -> list[str]:
    """Return how the answer to CASE differs, but for what calls that were not kept may have to do with."""
    left_out = (*_INCOMPLETE, "status.code:") if case["rpc"] == "ReceiveMessage" else _INCOMPLETE
    found = differences(case, replay.answers[case["id"]])
    return [line for line in found if not line.startswith(left_out)]


def _answers(case: Case) -> Iterator[dict[str, Any]]:
    yield from (item["body"] for item in case["responses"])


def _handles(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("receipt_handle", "recall_handle"):
                yield value
            else:
                yield from _handles(value)
    elif isinstance(node, list):
        for value in node:
            yield from _handles(value)
