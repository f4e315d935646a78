"""The data of the console's pages of messages: a search, or one message with its history and body."""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import suppress
from typing import Final
from urllib.parse import quote, urlencode

from ...proto.errors import PocketMQError
from ...proto.rpc.pages import PageRequest
from ...proto.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic
from ..instants import past_instant_of
from .api import Api, Document
from .waiting import waiting

_BODY_SHOWN: Final = 4_000
_JSON_MAX: Final = 100_000
_HEX_BYTES: Final = 1_024
_ASKED_BY: Final = ("id", "key", "tag", "queue", "offset", "sql", "from_ms", "to_ms")


async def messages_data(api: Api, asked: PageRequest) -> Document:
    """Return the messages for the query of ASKED, or `one` if it names a single one, or the `error`."""
    query = asked.query
    found: Document = {"topic": query.get("topic", ""), "error": "", "one": None}
    if not found["topic"]:
        return found
    try:
        rows = await _searched(api, found["topic"], query)
    except PocketMQError as error:
        return found | {"error": error.message}
    if rows and _names_one(query):
        return found | {"one": await _one_message(api, rows[0], asked)}
    return found | {"messages": rows}


def _names_one(query: dict[str, str]) -> bool:
    return bool(query.get("offset") or query.get("id"))


async def _searched(api: Api, topic: str, query: dict[str, str]) -> list[Document]:
    wanted = {name: query[name] for name in _ASKED_BY if query.get(name)}
    wanted["limit"] = "1" if _names_one(query) else query.get("limit", "50")
    for name in ("from", "to"):
        if text := query.get(name):
            wanted[f"{name}_ms"] = str(past_instant_of(text))
    if "to_ms" in wanted:
        wanted.setdefault("from_ms", "0")
    return await _messages(api, topic, wanted)


async def _messages(api: Api, topic: str, wanted: dict[str, str]) -> list[Document]:
    found = await api.messages(PageRequest("GET", f"/?{urlencode(wanted)}", {}), topic)
    rows: list[Document] = found["messages"]
    return rows


async def message_data(api: Api, asked: PageRequest, message_id: str) -> Document:
    """Return the message with MESSAGE_ID, of any topic. With `topic` in the query it is found faster."""
    found: Document = {"message_id": message_id, "error": "", "one": None}
    stories: list[Document] = []
    topics = [asked.query["topic"]] if asked.query.get("topic") else []
    if not topics:
        life = await _life(api, message_id)
        if life["error"]:
            return found | {"error": life["error"]}
        stories = life["stories"]
        topics = list(dict.fromkeys(story["topic"] for story in stories if story["topic"]))
    reason = ""
    for topic in topics:
        try:
            rows = await _messages(api, topic, {"id": message_id, "limit": "1"})
        except PocketMQError as error:
            reason = error.message
        else:
            return found | {"one": await _one_message(api, rows[0], asked)}
    return found | {"life": {"stories": stories, "error": "" if stories else reason}}


async def _life(api: Api, message: str) -> Document:
    """Return the histories of MESSAGE, an id or a place, and the error if there are none."""
    try:
        found = await api.history(PageRequest("GET", "/", {}), message)
    except PocketMQError as error:
        return {"stories": [], "error": error.message}
    return found | {"error": ""}


async def _one_message(api: Api, row: Document, asked: PageRequest) -> Document:
    topic, queue, offset = row["topic"], row["queue"], row["queue_offset"]
    status = await api.status()
    is_dead_letter = topic.startswith(DEAD_LETTER_PREFIX)
    body = b64decode(row["body_base64"]) if row["body"] is None else row["body"].encode()
    return {
        "row": row,
        "life": await _life(api, f"{topic}/{queue}/{offset}"),
        "waits": waiting(row, status.broker_name, status.now_ms),
        "dead_letter_of": topic.removeprefix(DEAD_LETTER_PREFIX) if is_dead_letter else "",
        "may_be_sent_again": not (topic.startswith(RETRY_PREFIX) or is_system_topic(topic)),
        "body": _undecoded(row) if row["body"] is None else _pretty(row["body"]),
        "properties": sorted(row["properties"].items()),
        "hex": hex_dump(body),
        "curl": _curl(row, asked, has_users=api.parts.guard is not None),
        "python": _python(row),
    }


def _undecoded(row: Document) -> str:
    """Return the text for a body that is not text."""
    encoded = f"base64: {row['body_base64'][:_BODY_SHOWN]}"
    fault = row.get("body_fault")
    return (
        encoded if fault is None else f"The body cannot be decoded: {fault}\nAs stored, {encoded}"
    )


def _pretty(text: str) -> str:
    if text[:1] in "{[" and len(text) <= _JSON_MAX:
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return text if len(text) <= _BODY_SHOWN else f"{text[:_BODY_SHOWN]}\n… {len(text):,} characters"


def hex_dump(body: bytes) -> str:
    """Return the beginning of BODY in hexadecimal, sixteen bytes per line, with their ASCII characters."""
    lines = []
    for at in range(0, min(len(body), _HEX_BYTES), 16):
        piece = body[at : at + 16]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{at:06x}  {piece.hex(' '):47}  {signs}")
    if len(body) > _HEX_BYTES:
        lines.append(f"… {len(body):,} bytes")
    return "\n".join(lines) or "The body is empty."


def _curl(row: Document, asked: PageRequest, *, has_users: bool) -> str:
    user = " -u USER" if has_users else ""
    origin = f"{'https' if asked.secure else 'http'}://{asked.headers.get('host', '')}"
    place = f"queue={row['queue']}&offset={row['queue_offset']}&limit=1"
    return f"curl{user} '{origin}/api/topics/{quote(row['topic'], safe='')}/messages?{place}'"


def _python(row: Document) -> str:
    place = f"{row['topic']!r}, {row['queue']}, {row['queue_offset']}"
    return (
        "from pocketmq.client import Admin\n\n"
        "with Admin() as admin:  # the name server of $POCKETMQ_NAMESERVER, or 127.0.0.1:9876\n"
        f"    (message,) = admin.lookup_offset({place})\n"
        "    print(message.message_id, message.body)"
    )
