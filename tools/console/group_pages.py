"""The console's pages of groups, dead letters, connections and the store; pages.py has the others.

The console's pages of what waits, delayed messages and transactions, and of users; pages.py has the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode

from ...proto.errors import PocketMQError
from ...proto.rpc.pages import PageRequest
from ...proto.time_text import format_duration
from ..connections import age_text, bytes_text
from . import frame
from .api import Api, Document
from .rows import group_link, lag_table, paging, search_box, short_body, topic_link
from .waiting import check, delayed, transactions, users


async def groups_page(api: Api, asked: PageRequest) -> frame.Content:
    """Return the page of the groups."""
    query = asked.query
    found = await api.groups(asked)
    return [
        frame.heading(
            "Groups", frame.e("p", f"{found['total']:,}"), search_box("/groups", query, "a group")
        ),
        frame.e(
            "section",
            frame.table(
                ("group", "verdict", "#lag", "#oldest unread", "#dead letters", "#tries"),
                [
                    (
                        group_link(row["name"]),
                        frame.badge(row["verdict"]),
                        row["lag"],
                        age_text(row["oldest_unread_ms"]) if row["oldest_unread_ms"] else "–",
                        row["dead_letters"],
                        row["retry_max_times"],
                    )
                    for row in found["groups"]
                ],
                "No group is there yet: a consumer makes its own when it starts.",
                "groups",
            ),
            paging("/groups", found, query),
            class_="card",
        ),
    ]


def _reset_form(name: str) -> frame.Content:
    preview = frame.e(
        "label",
        frame.e("input", type="checkbox", name="preview", data_kind="flag", checked=True),
        "Preview: move nothing",
        class_="flag",
    )
    to = frame.e(
        "label",
        "To",
        frame.e(
            "select",
            frame.e("option", "the end", value="to_last"),
            frame.e("option", "the beginning", value="to_first"),
            name="to",
            data_kind="choice",
        ),
    )
    return frame.form(
        f"/api/groups/{quote(name, safe='')}/reset",
        "Reset offsets",
        frame.field("Topic", "topic", required=True),
        to,
        preview,
        button="Reset",
    )


#: Values of a group's subscription check, as people read them.
_CHECKS: Final = (
    ("grace", "both for a while, then the newer"),
    ("warn", "both, with a warning"),
    ("refuse", "the newer is refused"),
)


def _check_form(name: str, settings: Document) -> frame.Html:
    """Return the form that says what happens when members of group NAME subscribe to different things."""
    return frame.form(
        f"/api/groups/{quote(name, safe='')}",
        "Different subscriptions",
        frame.e(
            "label",
            "Members that read different things",
            frame.e(
                "select",
                *(
                    frame.e(
                        "option",
                        words,
                        value=value,
                        selected=settings.get("subscription_check") == value,
                    )
                    for value, words in _CHECKS
                ),
                name="subscription_check",
            ),
        ),
        button="Change",
    )


def _conflicts(found: list[Document], left_ms: int | None) -> frame.Content:
    if not found:
        return None
    then = (
        ""
        if left_ms is None
        else f" All are served for another {format_duration(left_ms // 1_000 * 1_000)}, then those with the newest"
        " subscription."
    )
    rows = [(", ".join(one["subscriptions"]), ", ".join(one["members"])) for one in found]
    return frame.card(
        "Members read different things",
        frame.e(
            "p",
            "Members of one group have to want the same topics with the same filters: a queue's messages are skipped by"
            f" the filter of the member that reads it.{then}",
            class_="error",
        ),
        frame.table(("reads", "members"), rows, "", "conflicts"),
    )


async def group_page(api: Api, asked: PageRequest, name: str) -> frame.Content:
    """Return the page of one group."""
    found = await api.group(asked, name)
    reset = _reset_form(name)
    settings = found["settings"] or {}
    retry = frame.form(
        f"/api/groups/{quote(name, safe='')}",
        "Retries",
        frame.field(
            "Tries at most",
            "retry_max_times",
            "number",
            value=settings.get("retry_max_times", 16),
            min=0,
        ),
        button="Change",
    )
    intervals = (
        ", ".join(map(format_duration, settings.get("retry_intervals_ms", ()))) or "by delay level"
    )
    members: list[tuple[frame.Content, ...]] = [
        (
            one["member_id"],
            f"PocketMQ, {one['kind']}",
            one["address"],
            ", ".join(one["subscriptions"]),
            len(one["queues"]),
        )
        for one in found["members"]
    ]
    members += [
        (
            one["client_id"],
            f"official, {one['type'].replace('_', ' ').lower()}",
            " ".join(filter(None, (one["language"], one["version"]))),
            ", ".join(one["subscriptions"]),
            None,
        )
        for one in found["clients"]
    ]
    dead = (
        await api.dead_letters(PageRequest("GET", "/?limit=1", {}), name)
        if settings
        else {"dead_letters": []}
    )
    return [
        frame.heading(
            name,
            frame.e(
                "p",
                f"lag {found['lag']:,} · at most {settings.get('retry_max_times', '–')} tries, {intervals}",
            ),
            reset,
            retry,
            _check_form(name, settings),
        ),
        frame.e(
            "p",
            frame.e("a", "Dead letters", href=f"/dead-letters?{urlencode({'group': name})}"),
            " are waiting.",
            class_="error",
        )
        if dead["dead_letters"]
        else None,
        _conflicts(found["conflicts"], found["grace_left_ms"]),
        frame.card(
            "Members",
            frame.table(
                ("member", "client", "address, or language and version", "reads", "#queues"),
                members,
                "Nobody is on.",
                "members",
            ),
        ),
        frame.card("Queues", lag_table(found["lags"], "lags")),
        frame.card(
            "Offsets",
            frame.table(
                (
                    "topic",
                    "#queue",
                    "#committed",
                    "#from",
                    "#to",
                    "#lag",
                    "#ready",
                    "#in flight",
                    "#oldest unread",
                    "#skipped by filter",
                    "held by",
                ),
                [
                    (
                        topic_link(one["topic"]),
                        one["queue"],
                        one["offset"],
                        one["min_offset"],
                        one["max_offset"],
                        one["lag"],
                        one["ready"],
                        one["in_flight"],
                        age_text(one["oldest_unread_ms"]) if one["oldest_unread_ms"] else "–",
                        one["stepped_over"],
                        one["holder"] or "–",
                    )
                    for one in found["queues"]
                ],
                "It has read nothing.",
                "offsets",
            ),
        ),
    ]


async def dead_letters_page(api: Api, asked: PageRequest) -> frame.Content:
    """Return the page of groups with dead letters, or those of one."""
    query = asked.query
    group = query.get("group", "")
    if not group:
        found = await api.all_dead_letters(asked)
        rows = [
            (
                frame.e(
                    "a", one["group"], href=f"/dead-letters?{urlencode({'group': one['group']})}"
                ),
                one["dead_letters"],
                one["resent"],
            )
            for one in found["groups"]
        ]
        return [
            frame.heading("Dead letters"),
            frame.e(
                "section",
                frame.table(
                    ("group", "#dead letters", "#sent again"), rows, "No group has any.", "groups"
                ),
                _resent_link(query),
                class_="card",
            ),
        ]
    wanted = {key: value for key, value in query.items() if key in ("from", "limit", "all")}
    found = await api.dead_letters(PageRequest("GET", f"/?{urlencode(wanted)}", {}), group)
    path = f"/api/groups/{quote(group, safe='')}/dead-letters"
    offsets = ", ".join(str(one["offset"]) for one in found["dead_letters"])
    resend = (
        frame.form(
            f"{path}/resend",
            "Send again",
            frame.field("Numbers", "offsets", "numbers", value=offsets, required=True),
            frame.field("To", "topic", placeholder="where each came from"),
            button="Send again",
        )
        if offsets
        else None
    )
    resend_all = (
        frame.form(
            f"{path}/resend",
            "Send all again",
            frame.e("input", type="hidden", name="from", value=0, data_kind="number"),
            frame.field("To", "topic", placeholder="where each came from"),
            button="Send all again",
            confirm=f"Send all dead letters of {group} again? They stay here until they are purged.",
        )
        if offsets
        else None
    )
    purge = (
        frame.form(
            f"{path}/purge",
            "Purge all",
            button="Purge all",
            confirm=f"Put away all dead letters of {group}?",
        )
        if offsets
        else None
    )
    following = found["next_from"]
    more = (
        frame.e(
            "nav",
            frame.e(
                "a",
                "Next →",
                href=f"/dead-letters?{urlencode(query | {'from': str(following)})}",
            ),
            class_="paging",
        )
        if following is not None
        else None
    )
    return [
        frame.heading(
            "Dead letters", frame.e("p", "of ", group_link(group)), resend, resend_all, purge
        ),
        frame.e(
            "section",
            frame.table(
                (
                    "#number",
                    "died",
                    "from topic",
                    "#failed",
                    "reason",
                    "message",
                    "body",
                    "sent again",
                ),
                [
                    (
                        one["offset"],
                        frame.when(one["died_ms"]),
                        topic_link(one["origin_topic"]) if one["origin_topic"] else "–",
                        one["reconsume_times"],
                        one["reason"],
                        _history_link(one),
                        frame.e("code", short_body(one["message"]), class_="body"),
                        "yes" if one["resent"] else "no",
                    )
                    for one in found["dead_letters"]
                ],
                "It has none.",
                "letters",
            ),
            more,
            _resent_link(query),
            class_="card",
        ),
    ]


def _resent_link(query: Mapping[str, str]) -> frame.Html:
    """Return a link that shows, or hides, the dead letters that were sent again."""
    hidden = query.get("all") != "true"
    wanted = {"group": query["group"]} if query.get("group") else {}
    wanted |= {"all": "true"} if hidden else {}
    text = "Show those that were sent again" if hidden else "Hide those that were sent again"
    path = f"/dead-letters?{urlencode(wanted)}" if wanted else "/dead-letters"
    return frame.e("p", frame.e("a", text, href=path))


def _history_link(letter: Document) -> frame.Html:
    """Return a link to the page of LETTER's message, with its history."""
    message_id = letter["message_id"] or letter["message"]["offset_message_id"]
    topic = letter["origin_topic"] or letter["message"]["topic"]
    path = f"/messages/{quote(message_id, safe='')}?{urlencode({'topic': topic})}"
    return frame.e("a", message_id, href=path, class_="id")


def _close(one: Document) -> frame.Html:
    question = f"Break off the connection of {one['peer']}, with all that is under way on it?"
    return frame.row_form(
        f"/api/connections/{one['id']}/close", "Close", question, peer=one["peer"]
    )


async def connections_page(api: Api, asked: PageRequest) -> frame.Content:
    """Return the page of who is connected."""
    found = await api.connections(asked)
    totals = found["totals"]
    following = found["next_id"]
    more = (
        frame.e(
            "nav",
            frame.e("a", "Next →", href=f"/connections?{urlencode({'first_id': following})}"),
            class_="paging",
        )
        if following
        else None
    )
    return [
        frame.heading(
            "Connections",
            frame.e(
                "p",
                f"{totals['open']:,} open, {totals['accepted']:,} accepted, {totals['refused']:,} refused",
            ),
        ),
        frame.e(
            "section",
            frame.table(
                (
                    "peer",
                    "tls",
                    "#open for",
                    "#calls",
                    "#failed",
                    "#read",
                    "#written",
                    "#waiting",
                    "last call",
                    "client",
                    "close",
                ),
                [
                    (
                        one["peer"],
                        "yes" if one["secure"] else "no",
                        age_text(one["age_ms"]),
                        one["calls_begun"],
                        one["calls_failed"],
                        bytes_text(one["bytes_read"]),
                        bytes_text(one["bytes_written"]),
                        bytes_text(one["bytes_queued"]),
                        one["last_path"].rpartition("/")[2] or "–",
                        one["user_agent"] or "–",
                        _close(one) if one["peer"] != asked.peer else "this page",
                    )
                    for one in found["connections"]
                ],
                "Nobody is connected.",
                "connections",
            ),
            more,
            class_="card",
        ),
        frame.card(
            "Official clients",
            frame.table(
                ("client", "type", "language", "version", "group"),
                [
                    (
                        one["client_id"],
                        one["type"],
                        one["language"],
                        one["version"],
                        group_link(one["group"]) if one["group"] else "–",
                    )
                    for one in found["official_clients"]
                ],
                "None is known.",
                "clients",
            ),
        ),
    ]


async def store_page(api: Api, asked: PageRequest) -> frame.Content:
    """Return the page of the store."""
    found = await api.store(asked)
    state = (
        frame.e("span", "writable", class_="badge good")
        if found["writable"]
        else frame.e("span", found["not_writable_because"], class_="badge bad")
    )
    files, kept = found["files"], found["retention"]
    percents = (kept[f"disk_{name}_percent"] for name in ("expire", "force", "refuse"))
    return [
        frame.heading(
            "Store",
            frame.e("p", frame.e("code", found["path"])),
            frame.form("/api/store/doctor", "Ask the doctor", button="Look at the files"),
        ),
        frame.card(
            "Files",
            frame.facts(
                (
                    (
                        "Log",
                        f"{files['log']['files']:,}, together {bytes_text(files['log']['bytes'])}",
                    ),
                    (
                        "Queues",
                        f"{files['queues']['files']:,} of {files['queues']['queues']:,} queues",
                    ),
                    ("Index", f"{files['index']['files']:,}"),
                    ("Kept for", format_duration(kept["retention_ms"])),
                    (
                        "Device: go early, go at once, nothing new",
                        "{} %, {} %, {} %".format(*percents),
                    ),
                )
            ),
        ),
        frame.card(
            "State",
            frame.facts(
                (
                    ("State", state),
                    ("Log", f"{found['min_log_offset']:,} to {found['max_log_offset']:,}"),
                    ("Not on the device yet", bytes_text(found["flush_behind_bytes"])),
                    ("Not in its queue yet", bytes_text(found["dispatch_behind_bytes"])),
                    ("Disk used", f"{found['disk_used_ratio']:.1%}"),
                )
            ),
        ),
        frame.card(
            "Last recovery",
            frame.e("pre", json.dumps(found["recovery"], indent=2, ensure_ascii=False)),
        ),
    ]


# ---------------------------------------------------------------- the console's pages of what waits


async def delayed_page(api: Api, asked: PageRequest) -> frame.Content:
    """Return the page of the messages that wait for their time."""
    found = await delayed(api, asked)
    due = found["due"]
    chart: frame.Content = frame.e("p", "No message waits for an instant.", class_="none")
    if due:
        most = max(one["messages"] for one in due)
        span = age_text(due[0]["to_ms"] - due[0]["from_ms"])
        last = age_text(max(0, found["last_due_ms"] - found["now_ms"]))
        label = f"From now until {last} from now, {span} a bar of {most:,} at most"
        chart = [frame.bars([one["messages"] for one in due], label), frame.e("small", label)]
    return [
        frame.heading(
            "Delayed",
            frame.e(
                "p", f"{found['waiting']:,} wait, {found['to_an_instant']:,} of them to an instant"
            ),
        ),
        frame.card("Due", chart, frame.facts((("Next", frame.when(found["next_due_ms"])),))),
        frame.card(
            "Newest that wait",
            frame.table(
                ("due", "topic", "message", "tag", "keys", "body", "recall"),
                [
                    (
                        frame.when(row["due_ms"]),
                        topic_link(row["topic"]),
                        frame.e("a", row["message_id"], href=_place(row), class_="id"),
                        row["tag"] or "–",
                        " ".join(row["keys"]) or "–",
                        frame.e("code", short_body(row), class_="body"),
                        recall_form(row),
                    )
                    for row in found["messages"] or ()
                ],
                "Reading them needs Get on the cluster, and Sub on all topics and groups."
                if found["messages"] is None
                else "None of the newest waits.",
                "waiting",
            ),
        ),
        frame.card(
            "Topics",
            frame.table(
                ("topic", "#messages"),
                [(topic_link(one["topic"]), one["messages"]) for one in found["topics"]],
                "No topic has any to an instant.",
                "topics",
            ),
        ),
    ]


def _place(row: Document) -> str:
    return f"/messages?{urlencode(row['waits_at'])}"


def recall_form(row: Document) -> frame.Html:
    """Return a button that takes back the message ROW, which waits for its time."""
    path = f"/api/topics/{quote(row['topic'], safe='')}/recall"
    question = f"Take message {row['message_id']} of {row['topic']} back?"
    return frame.row_form(path, "Recall", question, handle=row["recall_handle"])


async def transactions_page(api: Api, asked: PageRequest) -> frame.Content:
    """Return the page of the half messages without an outcome."""
    query = asked.query
    found = await transactions(api, asked)
    return [
        frame.heading(
            "Transactions",
            frame.e(
                "p", f"{found['total']:,} without an outcome, {found['listeners']:,} answer checks"
            ),
            search_box("/transactions", query, "a topic"),
        ),
        frame.e(
            "section",
            frame.table(
                ("topic", "group", "transaction", "stored", "#age", "#checked", "next check"),
                [
                    (
                        topic_link(row["topic"]),
                        group_link(row["group"]) if row["group"] != row["topic"] else "–",
                        frame.e("span", row["transaction_id"], class_="id"),
                        frame.when(row["stored_ms"]),
                        age_text(row["age_ms"]),
                        row["checked"],
                        frame.when(row["next_check_ms"]),
                    )
                    for row in found["transactions"]
                ],
                "Every transaction has its outcome.",
                "transactions",
            ),
            paging("/transactions", found, query),
            class_="card",
        ),
    ]


async def users_page(api: Api, asked: PageRequest) -> frame.Content:
    """Return the page of the users and their rules."""
    query = asked.query
    try:
        found = await users(api, asked)
    except PocketMQError as error:
        return [frame.heading("Users"), frame.e("p", error.message, class_="error")]
    return [
        frame.heading(
            "Users",
            frame.e("p", f"{found['total']:,}; `pocketmq user` and `pocketmq acl` change them"),
            search_box("/users", query, "a user"),
        ),
        frame.e(
            "form",
            frame.field("User", "user", value=query.get("user", ""), required=True),
            frame.field("Action", "action", value=query.get("action", "Pub"), required=True),
            frame.field(
                "Resource", "resource", value=query.get("resource", "Topic:"), required=True
            ),
            frame.field("From", "from", value=query.get("from", "127.0.0.1")),
            frame.e("button", "May they?"),
            action="/users",
            class_="find card",
        ),
        await _decision(api, asked),
        frame.e(
            "section",
            frame.table(
                ("user", "type", "status", "rules", "where none fits"),
                [
                    (
                        row["user"],
                        row["type"],
                        row["status"],
                        _rules(row["policies"]),
                        _rules(row.get("default_policies", [])),
                    )
                    for row in found["users"]
                ],
                "No user has this in the name.",
                "users",
            ),
            paging("/users", found, query),
            class_="card",
        ),
    ]


async def _decision(api: Api, asked: PageRequest) -> frame.Content:
    if not asked.query.get("user"):
        return None
    try:
        told = await check(api, asked, asked.query["user"])
    except PocketMQError as error:
        return frame.e("p", error.message, class_="error", role="alert")
    kind = "good" if told["decision"] == "Allow" else "bad"
    decision = frame.e("span", told["decision"], class_=f"badge {kind}")
    pairs = (("Decision", decision), ("Reason", told["reason"]), ("Rule", told["policy"] or "–"))
    return frame.e("section", frame.facts(pairs), class_="card", id="decision")


def _rules(rules: list[Document]) -> frame.Content:
    if not rules:
        return "–"
    lines = [
        f"{one['decision']} {', '.join(one['actions'])} on {one['resource']}"
        + (f" from {', '.join(one['sources'])}" if "sources" in one else "")
        for one in rules
    ]
    return frame.e("ul", *(frame.e("li", line) for line in lines), class_="rules")
