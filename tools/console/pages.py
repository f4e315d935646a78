"""The console's pages: what the API tells (api.py), as HTML that is readable without a script.

    /   /topics   /topics/{topic}   /messages   /messages/{id}   /groups   /groups/{group}
    /dead-letters   /delayed   /transactions   /connections   /store   /users

Rows are those of the API's answers; names lead to the page of what they name. `console.mjs` shows a page anew when
something has changed, and sends forms that have `data-post`, as JSON, to the API.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final
from urllib.parse import quote, urlencode

from ...proto.errors import PocketMQError, ServiceNotFound
from ...proto.rpc.pages import READING, PageRequest
from ...proto.time_text import format_duration
from ...proto.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX, is_system_topic
from ..connections import age_text, bytes_text
from ..instants import past_instant_of
from . import frame
from .api import Api, Document
from .door import Visitor
from .group_pages import (
    connections_page,
    dead_letters_page,
    delayed_page,
    group_page,
    groups_page,
    recall_form,
    store_page,
    transactions_page,
    users_page,
)
from .rates import SAMPLE_MS
from .rows import (
    create_topic_form,
    group_link,
    lag_table,
    paging,
    search_box,
    short_body,
    topic_link,
)
from .waiting import waiting

_BODY_SHOWN: Final = 4_000
_HEX_BYTES: Final = 1_024


async def page(api: Api, asked: PageRequest, visitor: Visitor) -> str:
    """Return the page that ASKED of VISITOR is for."""
    if asked.method not in READING:
        raise ServiceNotFound(f"{asked.path[:200]} is a page: ask with GET")
    place, *names = asked.parts
    make = (_PAGES if not names else _PAGES_OF_ONE).get(place)
    if make is None or len(names) > 1:
        raise ServiceNotFound(f"there is no page {asked.path[:200]}")
    main = await make(api, asked, *names)
    title = (
        names[0]
        if names
        else next((name for path, name in frame.PLACES if path == f"/{place}"), "")
    )
    status = await api.status()
    clock = (
        frame.e("span", "virtual clock ", frame.when(status.now_ms), class_="clock")
        if status.virtual_clock
        else None
    )
    return frame.whole(title, asked, main, status.broker_name, clock, visitor)


# --- pages


async def _overview(api: Api, asked: PageRequest) -> frame.Content:
    found = await api.overview(asked)
    broker, rates, figures = found["broker"], found["rates"], found["figures"] or {}
    good = frame.e("span", "writable", class_="badge good")
    writable = (
        good
        if broker["writable"]
        else frame.e("span", f"not writable: {broker['not_writable_because']}", class_="badge bad")
    )
    flush = broker["max_log_offset"] - broker["flushed_offset"]
    dispatch = broker["max_log_offset"] - broker["dispatched_offset"]
    tiles = (
        ("State", writable),
        ("Waiting for their time", f"{broker['delayed_waiting']:,}"),
        ("Open transactions", f"{broker['transactions_open']:,}"),
        ("Popped, not finished", _figure(figures, "pocketmq_broker_pop_in_flight")),
        ("Connections", _figure(figures, "pocketmq_broker_connections")),
        ("Disk used", f"{broker['disk_used_ratio']:.0%}"),
        ("Behind: device, queues", f"{bytes_text(flush)}, {bytes_text(dispatch)}"),
        ("Memory", bytes_text(broker["rss_bytes"])),
    )
    charts = (
        ("Messages in", "in_messages_per_s", lambda value: f"{value:,.1f}/s"),
        ("Messages out", "out_messages_per_s", lambda value: f"{value:,.1f}/s"),
        ("Bytes in", "in_bytes_per_s", lambda value: f"{bytes_text(int(value))}/s"),
        ("Bytes out", "out_bytes_per_s", lambda value: f"{bytes_text(int(value))}/s"),
    )
    advance = None
    if broker["virtual_clock"]:
        advance = frame.form(
            "/api/clock/advance",
            "Advance the clock",
            frame.field("By", "by", placeholder="2h30m", required=True),
            button="Advance",
        )
    looked, count = found["groups_looked_at"] or 0, found["groups"] or 0
    part = f" (of the first {looked:,} of {count:,} groups)" if looked < count else ""
    languages = found["official_clients"] or {}
    clients = [(language, f"{count:,}") for language, count in languages.items()]
    lags = (
        lag_table(found["lags"], "lags")
        if found["lags"] is not None
        else frame.e("p", "To see them takes Get on all groups and topics.", class_="none")
    )
    return [
        frame.heading(
            broker["broker_name"],
            frame.e(
                "p",
                f"PocketMQ {broker['version']} · cluster {broker['cluster']} · since ",
                frame.when(broker["started_ms"]),
            ),
            advance,
        ),
        frame.e(
            "div",
            *(
                frame.e("div", frame.e("span", name), frame.e("b", value), class_="tile")
                for name, value in tiles
            ),
            class_="tiles",
        ),
        frame.e(
            "div",
            *(_chart_card(title, rates[name], text) for title, name, text in charts),
            class_="charts",
        )
        if rates
        else frame.e("p", "Rates and figures take Get on the cluster.", class_="none"),
        _clock_card(broker["now_ms"]) if broker["virtual_clock"] else None,
        _due_card(found["next_due"], broker["now_ms"]),
        _replica_card(found["replica"]),
        frame.card(f"Worst lags{part}", lags),
        frame.card("Official clients", frame.facts(clients)) if clients else None,
    ]


def _clock_card(now_ms: int) -> frame.Html:
    return frame.card(
        "The messages' clock",
        frame.clock_face(now_ms),
        frame.e("b", frame.when(now_ms)),
        id_="clock",
    )


def _due_card(found: list[Document] | None, now_ms: int) -> frame.Html | None:
    if not found:
        return None
    pairs: list[tuple[str, frame.Content]] = [
        (
            f"In {age_text(max(0, one['due_ms'] - now_ms))}",
            [f"{one['messages']:,} at ", frame.when(one["due_ms"])],
        )
        for one in found
    ]
    return frame.card("Next due", frame.facts(pairs), id_="due")


def _replica_card(found: Document | None) -> frame.Html | None:
    """Return how the replica set stands, with the distance of each other replica."""
    if not found:
        return None
    pairs = (
        ("This one", f"replica {found['replica']}, {'master' if found['master'] else 'follower'}"),
        ("Epoch", _figure(found, "epoch")),
        ("In sync", _figure(found, "in_sync_replicas")),
        (
            "Confirmed",
            f"{_figure(found, 'confirmed_bytes')} of {_figure(found, 'end_bytes')} bytes",
        ),
    )
    rows = [
        (
            one["replica"],
            frame.badge("in sync") if one["in_sync"] else frame.badge("not in sync"),
            bytes_text(int(one["behind_bytes"])),
            age_text(int(one["behind_seconds"] * 1000)),
        )
        for one in found["others"]
    ]
    titles = ("replica", "in sync", "#behind", "#for")
    return frame.card(
        f"Replica set {found['set']}",
        frame.facts(pairs),
        frame.table(titles, rows, "It is the only one.", "replicas"),
    )


def _figure(figures: Document, name: str) -> str:
    return f"{int(figures[name]):,}" if name in figures else "–"


def _chart_card(title: str, values: list[float], text: Callable[[float], str]) -> frame.Html:
    now = text(values[-1]) if values else "–"
    span = format_duration(len(values) * SAMPLE_MS) if values else "15 minutes"
    most = f"at most {text(max(values))}" if values else "a sample each 5 s"
    return frame.e(
        "section",
        frame.e("h2", title),
        frame.e("b", now),
        frame.chart(values, f"{title}, the last {span}, {most}"),
        frame.e("small", f"{span} · {most}"),
        class_="card",
    )


async def _topics(api: Api, asked: PageRequest) -> frame.Content:
    query = asked.query
    found = await api.topics(asked)
    create = create_topic_form("Create a topic")
    return [
        frame.heading(
            "Topics",
            frame.e("p", f"{found['total']:,}"),
            search_box("/topics", query, "a topic"),
            create,
        ),
        frame.e(
            "section",
            frame.table(
                ("topic", "type", "#queues", "#messages", "#sent", "last sent"),
                [
                    (
                        topic_link(row["name"]),
                        row["type"] or "–",
                        row["write_queues"],
                        row["messages"],
                        row["sent_messages"],
                        frame.when(row["last_sent_ms"]),
                    )
                    for row in found["topics"]
                ],
                "No topic has this in its name."
                if query.get("search")
                else "There is no topic yet: create one, or send to one with `pocketmq send`.",
                "topics",
            ),
            paging("/topics", found, query),
            class_="card",
        ),
    ]


async def _topic(api: Api, asked: PageRequest, name: str) -> frame.Content:
    found = await api.topic(asked, name)
    held = sum(one["max_offset"] - one["min_offset"] for one in found["queues"])
    newest = (await api.messages(PageRequest("GET", "/?limit=20", {}), name))["messages"]
    path = f"/api/topics/{quote(name, safe='')}"
    send = frame.form(
        f"{path}/messages",
        "Send a message",
        frame.e("label", "Body", frame.e("textarea", name="body", rows=4)),
        frame.field("Keys", "keys", "lines", placeholder="one, two"),
        frame.field("Tag", "tag"),
        frame.field("Delay", "delay", placeholder="30s"),
        frame.field("Message group", "message_group"),
        frame.field("Priority", "priority", "number", min=0),
        button="Send",
    )
    alter = frame.form(
        path,
        "Alter",
        frame.field(
            "Queues to write",
            "write_queues",
            "number",
            value=found["write_queues"],
            min=1,
            max=1024,
        ),
        frame.field(
            "Queues to read", "read_queues", "number", value=found["read_queues"], min=1, max=1024
        ),
        button="Change",
    )
    delete = frame.form(
        f"{path}/delete",
        "Delete",
        frame.field("Repeat its name", "name", required=True),
        button="Delete it and its messages",
    )
    return [
        frame.heading(
            name,
            frame.e(
                "p",
                f"{found['type'] or 'no type'} · {held:,} messages",
            ),
            send,
            alter,
            delete,
        ),
        frame.card("Newest messages", _message_table(newest, "newest")),
        frame.card(
            "Groups",
            frame.table(
                ("group", "#lag"),
                [(group_link(one["group"]), one["lag"]) for one in found["groups"]],
                "No group has read it.",
                "groups",
            )
            if found["groups"] is not None
            else frame.e("p", "To see them takes Get on all groups.", class_="none"),
        ),
        frame.card(
            "Queues",
            frame.table(
                ("#queue", "#from", "#to", "#messages", "oldest", "last stored", "#in/s"),
                [
                    (
                        one["queue"],
                        one["min_offset"],
                        one["max_offset"],
                        one["max_offset"] - one["min_offset"],
                        frame.when(one["min_store_time_ms"]),
                        frame.when(one["last_stored_ms"]),
                        "–" if one["messages_per_s"] is None else f"{one['messages_per_s']:,.1f}",
                    )
                    for one in found["queues"]
                ],
                "It has no queue.",
                "queues",
            ),
        ),
    ]


def _place(row: Document, offset: int) -> str:
    """Return the page of what lies at OFFSET of the queue of message ROW."""
    return (
        f"/messages?{urlencode({'topic': row['topic'], 'queue': row['queue'], 'offset': offset})}"
    )


def _message_table(rows: list[Document], key: str) -> frame.Html:
    return frame.table(
        ("message", "#queue", "#offset", "stored", "tag", "keys", "body"),
        [
            (
                frame.e(
                    "a",
                    row["message_id"] or "–",
                    href=_place(row, row["queue_offset"]),
                    class_="id",
                ),
                row["queue"],
                row["queue_offset"],
                frame.when(row["stored_ms"]),
                row["tag"] or "–",
                " ".join(row["keys"]) or "–",
                frame.e("code", short_body(row), class_="body"),
            )
            for row in rows
        ],
        "No message is there.",
        key,
    )


async def _messages(api: Api, asked: PageRequest) -> frame.Content:
    query = asked.query
    topic = query.get("topic", "")
    asked_by = ("id", "key", "tag", "queue", "offset", "sql", "from_ms", "to_ms")
    given = {name: query[name] for name in asked_by if query.get(name)}
    find = frame.e(
        "form",
        frame.field("Topic", "topic", value=topic, required=True),
        frame.field("Key", "key", value=query.get("key", "")),
        frame.field("Tag", "tag", value=query.get("tag", "")),
        frame.field("Id", "id", value=query.get("id", "")),
        frame.field("Queue", "queue", value=query.get("queue", "")),
        frame.field("Offset", "offset", value=query.get("offset", "")),
        frame.field("SQL", "sql", value=query.get("sql", ""), placeholder="price > 10"),
        frame.field("From", "from", value=query.get("from", ""), placeholder="2026-12-24T18:00Z"),
        frame.field("To", "to", value=query.get("to", "")),
        frame.e("button", "Find"),
        action="/messages",
        class_="find card",
        role="search",
    )
    if not topic:
        return [
            frame.heading("Messages"),
            find,
            frame.e(
                "p",
                "Say which topic; with nothing else its newest messages are shown.",
                class_="none",
            ),
        ]
    one = "offset" in given or "id" in given
    wanted = {**given, "limit": "1" if one else query.get("limit", "50")}
    try:
        for name in ("from", "to"):
            if text := query.get(name):
                wanted[f"{name}_ms"] = str(past_instant_of(text))
        if "to_ms" in wanted:
            wanted.setdefault("from_ms", "0")
        rows = (await api.messages(PageRequest("GET", f"/?{urlencode(wanted)}", {}), topic))[
            "messages"
        ]
    except PocketMQError as error:
        return [
            frame.heading("Messages"),
            find,
            frame.e("p", error.message, class_="error"),
        ]
    parts: list[frame.Content] = [
        frame.heading("Messages", frame.e("p", "of ", topic_link(topic))),
        find,
    ]
    if one and rows:
        return [*parts, *await _one_message(api, rows[0], asked)]
    return [*parts, frame.e("section", _message_table(rows, "messages"), class_="card")]


async def _message(api: Api, asked: PageRequest, message_id: str) -> frame.Content:
    """Return the page of the message with MESSAGE_ID, of any topic; `topic` saves the search for it."""
    heading = frame.heading("Message", frame.e("p", message_id))
    topics = [asked.query["topic"]] if asked.query.get("topic") else []
    stories: list[Document] = []
    if not topics:
        try:
            stories = (await api.life(PageRequest("GET", "/", {}), message_id))["stories"]
        except PocketMQError as error:
            return [heading, frame.e("p", error.message, class_="error")]
        topics = list(dict.fromkeys(story["topic"] for story in stories if story["topic"]))
    wanted = urlencode({"id": message_id, "limit": 1})
    reason = ""
    for topic in topics:
        try:
            found = await api.messages(PageRequest("GET", f"/?{wanted}", {}), topic)
        except PocketMQError as error:
            reason = error.message
        else:
            return [heading, *await _one_message(api, found["messages"][0], asked)]
    life = [_story(story) for story in stories] or frame.e("p", reason, class_="error")
    return [heading, frame.card("Life", life, id_="life")]


async def _one_message(api: Api, row: Document, asked: PageRequest) -> list[frame.Content]:
    host, secure = asked.headers.get("host", ""), asked.secure
    asked_by_user = api.parts.guard is not None
    place = f"{row['topic']}/{row['queue']}/{row['queue_offset']}"
    try:
        stories = (await api.life(PageRequest("GET", "/", {}), place))["stories"]
    except PocketMQError as error:
        life: frame.Content = frame.e("p", error.message, class_="error")
    else:
        life = [_story(story) for story in stories]
    before, after = row["queue_offset"] - 1, row["queue_offset"] + 1

    def at(offset: int, text: str) -> frame.Html:
        return frame.e(
            "a",
            text,
            href=_place(row, offset),
        )

    text = row["body"] if row["body"] is not None else None
    at_place = f"queue={row['queue']}&offset={row['queue_offset']}&limit=1"
    path = f"/api/topics/{quote(row['topic'], safe='')}/messages?{at_place}"
    user = " -u USER" if asked_by_user else ""
    scheme = "https" if secure else "http"
    curl = f"curl{user} '{scheme}://{host}{path}'"
    body = text.encode() if text is not None else b64decode(row["body_base64"])
    status = await api.status()
    return [
        _deeds(row, waiting(row, status.broker_name, status.now_ms)),
        frame.card("Life", life, id_="life"),
        frame.card(
            "Body",
            frame.e(
                "pre",
                _pretty(text) if text is not None else _undecoded(row),
                class_="body",
            ),
            id_="body",
        ),
        frame.card(
            "Facts",
            frame.facts(
                (
                    ("Id", frame.e("code", row["message_id"])),
                    ("Offset id", frame.e("code", row["offset_message_id"])),
                    (
                        "Place",
                        f"queue {row['queue']}, offset {row['queue_offset']:,}, log offset {row['log_offset']:,}",
                    ),
                    ("Born", frame.when(row["born_ms"])),
                    ("Stored", frame.when(row["stored_ms"])),
                    ("Due", frame.when(row["due_ms"])),
                    ("Tag", row["tag"] or "–"),
                    ("Keys", " ".join(row["keys"]) or "–"),
                    ("Priority", "–" if row["priority"] is None else row["priority"]),
                    ("Tried before", row["reconsume_times"]),
                )
            ),
        ),
        frame.card(
            "Properties",
            frame.table(
                ("name", "value"), sorted(row["properties"].items()), "It has none.", "properties"
            ),
        ),
        frame.card("As hex", frame.e("pre", hex_dump(body), class_="hex"), id_="hex"),
        frame.card("With curl", frame.e("pre", curl), id_="curl"),
        frame.card("In Python", frame.e("pre", _python(row)), id_="python"),
        frame.e(
            "nav",
            at(before, "← Offset before") if before >= 0 else None,
            at(after, "Next offset →"),
            class_="paging",
            aria_label="Messages of the queue",
        ),
    ]


def _undecoded(row: Document) -> str:
    """Return what is shown of a body that is no text."""
    encoded = f"base64: {row['body_base64'][:_BODY_SHOWN]}"
    fault = row.get("body_fault")
    return (
        encoded if fault is None else f"The body cannot be decoded: {fault}\nAs stored, {encoded}"
    )


def hex_dump(body: bytes) -> str:
    """Return the beginning of BODY in hexadecimal, sixteen bytes a line, with its signs of ASCII beside."""
    lines = []
    for at in range(0, min(len(body), _HEX_BYTES), 16):
        piece = body[at : at + 16]
        signs = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{at:06x}  {piece.hex(' '):47}  {signs}")
    if len(body) > _HEX_BYTES:
        lines.append(f"… {len(body):,} bytes")
    return "\n".join(lines) or "It is empty."


def _deeds(row: Document, waits: Document | None) -> frame.Content:
    """Return what can be done with message ROW, which WAITS for its time if that is something."""
    topic, place = row["topic"], {"queue": row["queue"], "offset": row["queue_offset"]}
    if waits is not None:
        return frame.e("div", recall_form(waits), class_="deeds")
    if topic.startswith(DEAD_LETTER_PREFIX):
        path = f"/api/groups/{quote(topic.removeprefix(DEAD_LETTER_PREFIX), safe='')}/dead-letters/resend"
        question = "Send this dead letter again, to the topic that it came from?"
        button = frame.row_form(path, "Send again", question, offsets=[row["queue_offset"]])
        return frame.e("div", button, class_="deeds")
    if topic.startswith(RETRY_PREFIX) or is_system_topic(topic):
        return None
    path = f"/api/topics/{quote(topic, safe='')}/resend"
    question = f"Send a copy of this message to {topic}? All groups that read it get one more."
    return frame.e("div", frame.row_form(path, "Send again", question, **place), class_="deeds")


def _python(row: Document) -> str:
    place = f"{row['topic']!r}, {row['queue']}, {row['queue_offset']}"
    return (
        "from pocketmq.client import Admin\n\n"
        "with Admin() as admin:  # the name server of $POCKETMQ_NAMESERVER, or 127.0.0.1:9876\n"
        f"    (message,) = admin.lookup_offset({place})\n"
        "    print(message.message_id, message.body)"
    )


def _pretty(text: str) -> str:
    if text[:1] in "{[" and len(text) <= 100_000:
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    return text if len(text) <= _BODY_SHOWN else f"{text[:_BODY_SHOWN]}\n… {len(text):,} characters"


def _story(story: Document) -> frame.Html:
    events = [
        frame.e(
            "li",
            frame.when(event["time"]),
            frame.e("span", event["text"]),
            class_=event["kind"].replace(" ", "-"),
        )
        for event in story["events"]
    ]
    views = [
        frame.e("li", frame.e("b", view["group"]), " ", view["text"]) for view in story["groups"]
    ]
    return frame.e(
        "div",
        frame.e("p", story["conclusion"], class_="conclusion"),
        frame.e("ol", *events, class_="life"),
        frame.e("ul", *views, class_="views") if views else None,
    )


_PAGES: Final[dict[str, Callable[..., Awaitable[frame.Content]]]] = {
    "": _overview,
    "topics": _topics,
    "messages": _messages,
    "groups": groups_page,
    "dead-letters": dead_letters_page,
    "delayed": delayed_page,
    "transactions": transactions_page,
    "users": users_page,
    "connections": connections_page,
    "store": store_page,
}
_PAGES_OF_ONE: Final[dict[str, Callable[..., Awaitable[frame.Content]]]] = {
    "topics": _topic,
    "groups": group_page,
    "messages": _message,
}
