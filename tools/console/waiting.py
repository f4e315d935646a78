"""Parts of the API: delayed messages, open transactions, and users with their rules.

Most data are in the broker's memory, and cheap: scheduled messages are counted by the slots of the timer wheel, and
lists have pages. The newest delayed messages are read from the topic where they wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from ...proto import properties as names
from ...proto.access import policies
from ...proto.access.users import User, policy_document
from ...proto.errors import (
    ConfigError,
    InvalidArgument,
    MessageNotFound,
    TopicNotFound,
    Unsupported,
)
from ...proto.recall_handle import encode_handle
from ...proto.rpc.pages import PageRequest
from ...proto.topics import TIMER_TOPIC
from ..output import message_document
from ..users import decision_document
from .api import LIMIT_MAX, Api, ApiRoute, Document, due_times, limit_of, number

_BARS: Final = 48
#: Limit of the newest records of the timer topic that are read for messages that still wait.
_LOOKED_AT: Final = 500


async def delayed(api: Api, asked: PageRequest) -> Document:
    """Return scheduled messages: counts by delivery time and topic, and the newest with their recall handles.

    They are in a system topic: a user who may not read it gets None for the messages.
    """
    api.need(asked, policies.of_topic("*", policies.GET))
    limit = limit_of(asked.query)
    status = await api.status()
    timers = api.parts.store.timers
    times_ms, counts = due_times(timers)
    may_read = api.may(policies.of_topic(TIMER_TOPIC, policies.SUB))
    every = [one for one in timers.metrics.counts.items() if one[1] > 0]
    topics = [one for one in every if api.sees_topic(one[0])]
    topics.sort(key=lambda one: (-one[1], one[0]))
    return {
        "now_ms": status.now_ms,
        "waiting": status.delayed_waiting,
        "to_an_instant": int(counts.sum()),
        "next_due_ms": int(times_ms[0]) if len(times_ms) else None,
        "last_due_ms": int(times_ms[-1]) if len(times_ms) else None,
        "due": histogram(times_ms, counts, status.now_ms),
        "topics": [{"topic": topic, "messages": count} for topic, count in topics[:LIMIT_MAX]],
        "left_out": len(every) - len(topics),
        "messages": (await _newest_waiting(api, status.broker_name, status.now_ms))[:limit]
        if may_read
        else None,
        "limit": limit,
    }


def histogram(times_ms: np.ndarray, counts: np.ndarray, now_ms: int) -> list[Document]:
    """Return how many of COUNTS are due in each of equal spans from NOW_MS until the last of TIMES_MS."""
    if not len(times_ms):
        return []
    span_ms = max(1_000, -(-(int(times_ms[-1]) + 1 - now_ms) // _BARS))
    bars = np.clip((times_ms - now_ms) // span_ms, 0, _BARS - 1)
    sums = np.bincount(bars, weights=counts, minlength=int(bars[-1]) + 1).astype(int)
    return [
        {
            "from_ms": now_ms + at * span_ms,
            "to_ms": now_ms + (at + 1) * span_ms,
            "messages": int(count),
        }
        for at, count in enumerate(sums)
    ]


async def _newest_waiting(api: Api, broker: str, now_ms: int) -> list[Document]:
    """Return messages that still wait, among the newest records of the timer topic, by delivery time."""
    try:
        (queue,) = (await api.admin.describe_topic(TIMER_TOPIC)).queues
        begin = max(queue.min_offset, queue.max_offset - _LOOKED_AT)
        if begin >= queue.max_offset:
            return []
        found = await api.admin.lookup_offset(TIMER_TOPIC, 0, begin, max_messages=_LOOKED_AT)
    except (TopicNotFound, MessageNotFound):
        return []  # No message was delayed yet.
    recalled = {
        one.properties[names.TIMER_DELETE_KEY]
        for one in found
        if names.TIMER_DELETE_KEY in one.properties
    }
    rows: dict[str, Document] = {}
    for one in found:
        topic = one.properties.get(names.REAL_TOPIC, "")
        if one.message_id in recalled or f"{topic}+{one.message_id}" in recalled:
            continue
        waits = waiting(message_document(one), broker, now_ms)
        if waits is not None:  # A message that is rolled over has several records.
            rows[one.message_id] = waits
    return sorted(rows.values(), key=lambda row: (row["due_ms"], row["message_id"]))


def waiting(row: Document, broker: str, now_ms: int) -> Document | None:
    """Return ROW of the timer topic as a scheduled message; None if it was recalled."""
    properties = row["properties"]
    topic, due_ms = properties.get(names.REAL_TOPIC, ""), _due_ms(properties)
    is_marker = names.TIMER_DELETE_KEY in properties
    if row["topic"] != TIMER_TOPIC or is_marker or not topic or due_ms < now_ms:
        return None
    return {
        **row,
        "topic": topic,
        "due_ms": due_ms,
        "waits_at": {
            "topic": TIMER_TOPIC,
            "queue": row["queue"],
            "offset": row["queue_offset"],
        },
        "recall_handle": encode_handle(topic, broker, due_ms, row["message_id"]),
    }


def _due_ms(properties: Mapping[str, str]) -> int:
    """Return the delivery time in PROPERTIES of a record of the timer topic, or the time of its slot; 0: none."""
    due, out = properties.get(names.TIMER_DELIVER_MS, ""), properties.get(names.TIMER_OUT_MS, "")
    if due.isdigit():
        return int(due)
    return int(out) + 1 if out.isdigit() else 0


async def transactions(api: Api, asked: PageRequest) -> Document:
    """Return a page of the half messages without commit or rollback, the oldest first."""
    api.need(asked, policies.of_topic("*", policies.GET), policies.of_group("*", policies.GET))
    query = asked.query
    skip, limit = number(query, "skip", 0), limit_of(query)
    now_ms = (await api.status()).now_ms
    wanted = query.get("search", "").lower()
    found = [one for one in api.parts.transactions.open_halves() if wanted in one.topic.lower()]
    found.sort(key=lambda one: (one.stored_ms, one.queue_offset))
    rows = [
        {
            "topic": one.topic,
            "group": one.group,
            "transaction_id": one.transaction_id,
            "stored_ms": one.stored_ms,
            "age_ms": max(0, now_ms - one.stored_ms),
            "checked": one.times,
            "next_check_ms": one.due_ms or None,
            "half_queue_offset": one.queue_offset,
        }
        for one in found[skip : skip + limit]
    ]
    return {
        "transactions": rows,
        "listeners": api.parts.transactions.listening,
        "total": len(found),
        "skip": skip,
        "limit": limit,
    }


def _need_administrator(api: Api, asked: PageRequest) -> Iterable[User]:
    guard = api.parts.guard
    if guard is None:
        raise Unsupported(
            "this broker has no users: set broker.users to a file of users (docs/users-and-acls.md)"
        )
    api.need(asked, policies.of_cluster(api.parts.cluster, policies.UPDATE))
    return guard.users


async def users(api: Api, asked: PageRequest) -> Document:
    """Return a page of the users and their rules, by name, without secrets."""
    query = asked.query
    every = _need_administrator(api, asked)
    skip, limit = number(query, "skip", 0), limit_of(query)
    wanted = query.get("search", "").lower()
    found = sorted((one for one in every if wanted in one.name.lower()), key=lambda one: one.name)
    return {
        "users": [_user_document(one) for one in found[skip : skip + limit]],
        "total": len(found),
        "skip": skip,
        "limit": limit,
    }


async def check(api: Api, asked: PageRequest, name: str) -> Document:
    """Return whether a user may do an action on a resource, like `pocketmq acl check`."""
    every = _need_administrator(api, asked)
    query = asked.query
    user = next((one for one in every if one.name == name), None)
    if user is None:
        raise InvalidArgument(f"there is no user {name[:80]!r}", field="user")
    try:
        resource = policies.Resource.parse(query.get("resource", ""), "resource")
        actions = policies.parse_actions(query.get("action", "").split(","), "action")
        host = str(policies.parse_source(query.get("from", "127.0.0.1"), "from").network_address)
    except ConfigError as error:
        raise InvalidArgument(error.message, **error.details) from None
    if resource.pattern is policies.Pattern.PREFIXED or resource.type == "*":
        raise InvalidArgument(
            "resource: give a single one, such as Topic:orders, or all of a type, such as Topic:*",
            field="resource",
        )
    need = policies.Need(resource.type, resource.name or "*", actions)
    return decision_document(user.decide(need, host, api.parts.cluster), enabled=user.enabled)


def _user_document(user: User) -> Document:
    document: Document = {
        "user": user.name,
        "type": "Super" if user.is_super else "Normal",
        "status": "enable" if user.enabled else "disable",
        "policies": [policy_document(one) for one in user.policies.custom],
    }
    if user.policies.default:
        document["default_policies"] = [policy_document(one) for one in user.policies.default]
    return document


WAITING: Final = (
    ApiRoute("GET", "/api/delayed", delayed),
    ApiRoute("GET", "/api/transactions", transactions),
    ApiRoute("GET", "/api/users", users),
    ApiRoute("GET", "/api/users/{user}/check", check),
)
