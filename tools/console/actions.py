"""The changes of the API: topics, messages, groups, dead letters, connections, virtual clock. Bodies are JSON."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from ...broker.service_v2.messages import set_properties, type_of_sent
from ...client import OffsetTarget
from ...client.message import PRIORITY_MAX
from ...proto.access.policies import UPDATE, of_cluster
from ...proto.clock import STEP_MAX_MS
from ...proto.errors import InvalidArgument, MessageNotFound, NotAuthorized
from ...proto.gen import pocketmq_v1_pb2 as pb, rocketmq_v2_pb2 as v2
from ...proto.rpc.pages import PageRequest
from ...proto.time_text import parse_duration
from ..group import move_document
from ..topic import topic_document
from .api import READS, Api, ApiRoute, Document, instant_ms, number
from .waiting import WAITING

_SEND: Final = "/apache.rocketmq.v2.MessagingService/SendMessage"
_TIMEOUT_MS: Final = 10_000
#: Limit of dead letters that one request resends.
_RESENT_MAX: Final = 500
_GROUP_NUMBERS: Final = ("retry_max_times", "retry_queues")
_GROUP_FLAGS: Final = ("order", "consume_enable")


def _body(asked: PageRequest, known: set[str]) -> dict[str, Any]:
    """Return the JSON object in the body of ASKED, with names among KNOWN. Raises InvalidArgument."""
    try:
        found = json.loads(asked.body or b"{}")
        json.dumps(found, ensure_ascii=False).encode()  # A single surrogate is no valid text.
    except (ValueError, RecursionError):
        raise InvalidArgument("the body is not JSON in UTF-8", field="body") from None
    if not isinstance(found, dict):
        raise InvalidArgument("the body must be a JSON object", field="body")
    for name in found:
        if name not in known:
            raise InvalidArgument(
                f"unknown field {name[:60]!r}: use {', '.join(sorted(known))}",
                field="body",
            )
    return found


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name, "")
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {str(value)[:40]!r}: must be text", field=name)
    return value


def _flag(values: Mapping[str, Any], name: str) -> bool:
    value = values.get(name, False)
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} is {str(value)[:40]!r}: must be true or false", field=name)
    return value


def _numbers(values: Mapping[str, Any], name: str) -> list[int]:
    value = values.get(name)
    if not isinstance(value, list):
        raise InvalidArgument(f"{name} must be a list of numbers", field=name)
    return [number({name: one}, name, 0) for one in value]


async def create_topic(api: Api, asked: PageRequest) -> Document:
    """Create a topic."""
    body = _body(asked, {"name", "type", "queues"})
    made = await api.admin.create_topic(
        _text(body, "name"), type=_text(body, "type"), queues=number(body, "queues", 8)
    )
    return topic_document(made)


async def alter_topic(api: Api, asked: PageRequest, topic: str) -> Document:
    """Change the given settings of a topic."""
    body = _body(asked, {"type", "read_queues", "write_queues", "permission", "force"})
    numbers: dict[str, Any] = {
        name: number(body, name, 0)
        for name in ("read_queues", "write_queues", "permission")
        if name in body
    }
    kind = _text(body, "type") if "type" in body else None
    made = await api.admin.update_topic(topic, type=kind, force=_flag(body, "force"), **numbers)
    return topic_document(made)


async def delete_topic(api: Api, asked: PageRequest, topic: str) -> Document:
    """Delete a topic and its messages; the body must have its name."""
    body = _body(asked, {"name"})
    if _text(body, "name") != topic:
        raise InvalidArgument(
            f'you cannot undo deleting {topic!r}: give its name as "name" to confirm', field="name"
        )
    await api.admin.delete_topic(topic)
    return {"deleted": topic}


async def send(api: Api, asked: PageRequest, topic: str) -> Document:
    """Send one message, like an official client."""
    body = _body(asked, {"body", "keys", "tag", "delay", "message_group", "priority", "properties"})
    keys, properties = body.get("keys", []), body.get("properties", {})
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise InvalidArgument("keys must be a list of text", field="keys")
    if not isinstance(properties, dict) or not all(
        isinstance(value, str) for value in properties.values()
    ):
        raise InvalidArgument("properties must be an object of text", field="properties")
    now_ms = (await api.status()).now_ms
    message = _message(topic, _text(body, "body").encode(), now_ms)
    message.user_properties.update(properties)
    system = message.system_properties
    system.keys.extend(keys)
    if tag := _text(body, "tag"):
        system.tag = tag
    if group := _text(body, "message_group"):
        system.message_group, system.message_type = group, v2.FIFO
    if delay := _text(body, "delay"):
        due_ms = now_ms + parse_duration(delay, field="delay")
        system.delivery_timestamp.FromMilliseconds(due_ms)
        system.message_type = v2.DELAY
    if "priority" in body:
        _set_priority(system, number(body, "priority", 0))
    return await _sent(api, message)


def _set_priority(system: v2.SystemProperties, priority: int) -> None:
    """Give the message of SYSTEM its PRIORITY, as an official client does."""
    if priority > PRIORITY_MAX:
        raise InvalidArgument(
            f"priority is {priority}: must be 0 to {PRIORITY_MAX}", field="priority", value=priority
        )
    if system.message_type != v2.NORMAL:
        raise InvalidArgument(
            "a message with a priority cannot have a message group or a delay: leave one of them out",
            field="priority",
            value=priority,
        )
    system.priority, system.message_type = priority, v2.PRIORITY


def _message(topic: str, body: bytes, now_ms: int) -> v2.Message:
    message = v2.Message(topic=v2.Resource(name=topic), body=body)
    system = message.system_properties
    system.message_id = f"01{secrets.token_hex(16)}".upper()
    system.born_timestamp.FromMilliseconds(now_ms)
    system.born_host = "console"
    system.message_type = v2.NORMAL
    return message


async def _sent(api: Api, message: v2.Message) -> Document:
    reply = await api.connection.call(
        _SEND,
        v2.SendMessageRequest(messages=[message]),
        v2.SendMessageResponse,
        _TIMEOUT_MS,
        {"x-mq-client-id": "console"},
    )
    status = reply.entries[0].status if reply.entries else reply.status
    if status.code == v2.UNAUTHORIZED:
        raise NotAuthorized(status.message)
    if status.code != v2.OK:
        raise InvalidArgument(f"{v2.Code.Name(status.code)}: {status.message}", field="message")
    entry = reply.entries[0]
    return {
        "message_id": entry.message_id,
        "recall_handle": entry.recall_handle or None,
        "offset": entry.offset,
    }


async def send_again(api: Api, asked: PageRequest, topic: str) -> Document:
    """Send a copy of a message to its topic, like an official client. A delayed message is due at once."""
    body = _body(asked, {"queue", "offset"})
    place = number(body, "queue", 0), number(body, "offset", 0)
    kind = (await api.admin.describe_topic(topic)).type
    one = (await api.admin.lookup_offset(topic, *place, max_messages=1))[0]
    if one.queue_offset != place[1]:
        raise MessageNotFound(
            f"{topic} has no message at offset {place[1]} of queue {place[0]}: it was deleted, or is damaged",
            field="offset",
            value=place[1],
        )
    now_ms = (await api.status()).now_ms
    message = _message(topic, one.body, now_ms)
    system = message.system_properties
    set_properties(message, system, one.properties)
    # Send it as a normal message: no transaction, no delivery time.
    system.ClearField("message_type")
    system.ClearField("delivery_timestamp")
    if kind == "DELAY":
        system.delivery_timestamp.FromMilliseconds(now_ms)
    system.message_type = type_of_sent(system)
    return await _sent(api, message)


async def recall(api: Api, asked: PageRequest, topic: str) -> Document:
    """Recall a scheduled message."""
    body = _body(asked, {"handle"})
    request = pb.RecallRequest(topic=topic, handle=_text(body, "handle"))
    reply = await api.ask("Recall", request, pb.RecallReply)
    return {"message_id": reply.message_id}


async def reset(api: Api, asked: PageRequest, group: str) -> Document:
    """Reset the offsets of a group, or with `preview` return the new offsets only."""
    body = _body(
        asked, {"topic", "to_time_ms", "to_offset", "to_first", "to_last", "preview", "force"}
    )
    target = OffsetTarget(
        time_ms=instant_ms(body, "to_time_ms", 0) if "to_time_ms" in body else None,
        offset=number(body, "to_offset", 0) if "to_offset" in body else None,
        first=_flag(body, "to_first"),
        last=_flag(body, "to_last"),
    )
    preview = _flag(body, "preview")
    moves = await api.admin.reset_offsets(
        group, _text(body, "topic"), target, dry_run=preview, force=_flag(body, "force")
    )
    return {"preview": preview, "moves": [move_document(one) for one in moves]}


async def alter_group(api: Api, asked: PageRequest, group: str) -> Document:
    """Change the given settings of a group."""
    body = _body(
        asked, {*_GROUP_NUMBERS, *_GROUP_FLAGS, "retry_intervals_ms", "subscription_check"}
    )
    return asdict(await api.admin.update_group(group, **_group_settings(body)))


async def create_group(api: Api, asked: PageRequest) -> Document:
    """Create a group."""
    body = _body(
        asked, {"name", *_GROUP_NUMBERS, *_GROUP_FLAGS, "retry_intervals_ms", "subscription_check"}
    )
    return asdict(await api.admin.create_group(_text(body, "name"), **_group_settings(body)))


def _group_settings(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group in BODY."""
    changes: dict[str, Any] = {}
    changes |= {name: number(body, name, 0) for name in _GROUP_NUMBERS if name in body}
    changes |= {name: _flag(body, name) for name in _GROUP_FLAGS if name in body}
    if "retry_intervals_ms" in body:
        changes["retry_intervals_ms"] = _numbers(body, "retry_intervals_ms")
    if "subscription_check" in body:
        changes["subscription_check"] = _text(body, "subscription_check")
    return changes


async def resend(api: Api, asked: PageRequest, group: str) -> Document:
    """Resend dead letters: those at `offsets`, or all `from` an offset on. The answer has the result of each.

    With `from`, one request resends up to _RESENT_MAX. The answer has `next_from` and `below` for the next request:
    dead letters that arrive meanwhile are not included.
    """
    body = _body(asked, {"offsets", "from", "below", "topic"})
    more: Document = {}
    if "from" in body:
        wanted, more = await _letters_from(api, group, body)
    else:
        offsets = body.get("offsets")
        if not isinstance(offsets, list) or not 0 < len(offsets) <= _RESENT_MAX:
            raise InvalidArgument(
                f"offsets must be a list of 1 to {_RESENT_MAX} offsets of dead letters; or give from, the first offset",
                field="offsets",
            )
        wanted = [number({"offsets": one}, "offsets", 0) for one in offsets]
    if not wanted:
        return {"dead_letters": [], **more}
    done = await api.admin.resend_dead_letters(group, wanted, topic=_text(body, "topic") or None)
    return {
        "dead_letters": [
            {
                "offset": one.queue_offset,
                "topic": one.topic or None,
                "queue": one.queue if one.error is None else None,
                "queue_offset": one.new_queue_offset if one.error is None else None,
                "error": None if one.error is None else one.error.message,
            }
            for one in done
        ],
        **more,
    }


async def _letters_from(
    api: Api, group: str, body: Mapping[str, Any]
) -> tuple[list[int], Document]:
    """Return the next offsets of dead letters for BODY, and the fields `next_from` and `below` of the answer."""
    bounds = await api.dead_letter_bounds(group)
    below = min(number(body, "below", bounds.max_offset), bounds.max_offset)
    begin = max(number(body, "from", 0), bounds.min_offset)
    found = await api.admin.dead_letters(
        group, from_offset=begin, max_letters=_RESENT_MAX, include_resent=False
    )
    wanted = [one.queue_offset for one in found if one.queue_offset < below]
    more = len(wanted) == _RESENT_MAX and wanted[-1] + 1 < below
    return wanted, {"next_from": wanted[-1] + 1 if more else None, "below": below}


async def purge(api: Api, asked: PageRequest, group: str) -> Document:
    """Purge dead letters: those below an offset, or all."""
    body = _body(asked, {"below"})
    below = number(body, "below", 0) if "below" in body else None
    return {"purged": await api.admin.purge_dead_letters(group, below=below)}


async def advance(api: Api, asked: PageRequest) -> Document:
    """Advance a virtual clock."""
    body = _body(asked, {"by"})
    by_ms = parse_duration(_text(body, "by"), field="by", max_ms=STEP_MAX_MS)
    reply = await api.ask("AdvanceClock", pb.AdvanceClockRequest(by_ms=by_ms), pb.ClockReply)
    return {"now_ms": reply.now_ms, "virtual": reply.virtual}


async def close_connection(api: Api, asked: PageRequest, connection: str) -> Document:
    """Close a connection; its calls in progress fail. The body must have the address of the peer."""
    body = _body(asked, {"peer"})
    api.need(asked, of_cluster(api.parts.cluster, UPDATE))
    wanted = number({"id": connection}, "id", 0)
    found = await api.connection_of(wanted)
    if found is None:
        raise InvalidArgument(
            f"connection {wanted} is not open: GET /api/connections lists open ones",
            field="connection",
        )
    if _text(body, "peer") != found.peer:
        raise InvalidArgument(
            f'connection {wanted} is from {found.peer}: give that as "peer" to confirm',
            field="peer",
        )
    if found.peer == asked.peer:
        raise InvalidArgument(
            "this is the connection of the request: disconnect to close it", field="connection"
        )
    return {"closed": api.parts.close_connection(wanted), "peer": found.peer}


ACTIONS: Final = (
    ApiRoute("POST", "/api/store/doctor", Api.doctor),
    ApiRoute("POST", "/api/topics", create_topic),
    ApiRoute("POST", "/api/topics/{topic}", alter_topic),
    ApiRoute("POST", "/api/topics/{topic}/delete", delete_topic),
    ApiRoute("POST", "/api/topics/{topic}/messages", send),
    ApiRoute("POST", "/api/topics/{topic}/resend", send_again),
    ApiRoute("POST", "/api/topics/{topic}/recall", recall),
    ApiRoute("POST", "/api/groups", create_group),
    ApiRoute("POST", "/api/groups/{group}", alter_group),
    ApiRoute("POST", "/api/groups/{group}/reset", reset),
    ApiRoute("POST", "/api/groups/{group}/dead-letters/resend", resend),
    ApiRoute("POST", "/api/groups/{group}/dead-letters/purge", purge),
    ApiRoute("POST", "/api/connections/{connection}/close", close_connection),
    ApiRoute("POST", "/api/clock/advance", advance),
)
#: All routes of the API, except events.
ROUTES: Final = (*READS, *WAITING, *ACTIONS)
