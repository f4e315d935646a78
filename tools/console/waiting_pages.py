"""The console's pages of what waits, delayed messages and transactions, and of users; pages.py has the others."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from ...proto.errors import PocketMQError
from ...proto.rpc.pages import PageRequest
from ..connections import age_text
from .api import Api, Document
from .markup import Content, Html, bars, card, e, facts, field, heading, row_form, table, when
from .rows import group_link, paging, search_box, short_body, topic_link
from .waiting import check, delayed, transactions, users


async def delayed_page(api: Api, asked: PageRequest) -> Content:
    """Return the page of the messages that wait for their time."""
    found = await delayed(api, asked)
    due = found["due"]
    chart: Content = e("p", "No message waits for an instant.", class_="none")
    if due:
        most = max(one["messages"] for one in due)
        span = age_text(due[0]["to_ms"] - due[0]["from_ms"])
        last = age_text(max(0, found["last_due_ms"] - found["now_ms"]))
        label = f"From now until {last} from now, {span} a bar of {most:,} at most"
        chart = [bars([one["messages"] for one in due], label), e("small", label)]
    return [
        heading(
            "Delayed",
            e("p", f"{found['waiting']:,} wait, {found['to_an_instant']:,} of them to an instant"),
        ),
        card("Due", chart, facts((("Next", when(found["next_due_ms"])),))),
        card(
            "Newest that wait",
            table(
                ("due", "topic", "message", "tag", "keys", "body", "recall"),
                [
                    (
                        when(row["due_ms"]),
                        topic_link(row["topic"]),
                        e("a", row["message_id"], href=_place(row), class_="id"),
                        row["tag"] or "–",
                        " ".join(row["keys"]) or "–",
                        e("code", short_body(row), class_="body"),
                        recall_form(row),
                    )
                    for row in found["messages"]
                ],
                "None of the newest waits.",
                "waiting",
            ),
        ),
        card(
            "Topics",
            table(
                ("topic", "#messages"),
                [(topic_link(one["topic"]), one["messages"]) for one in found["topics"]],
                "No topic has any to an instant.",
                "topics",
            ),
        ),
    ]


def _place(row: Document) -> str:
    return f"/messages?{urlencode(row['waits_at'])}"


def recall_form(row: Document) -> Html:
    """Return a button that takes back the message ROW, which waits for its time."""
    path = f"/api/topics/{quote(row['topic'], safe='')}/recall"
    question = f"Take message {row['message_id']} of {row['topic']} back?"
    return row_form(path, "Recall", question, handle=row["recall_handle"])


async def transactions_page(api: Api, asked: PageRequest) -> Content:
    """Return the page of the half messages without an outcome."""
    query = asked.query
    found = await transactions(api, asked)
    return [
        heading(
            "Transactions",
            e("p", f"{found['total']:,} without an outcome, {found['listeners']:,} answer checks"),
            search_box("/transactions", query, "a topic"),
        ),
        e(
            "section",
            table(
                ("topic", "group", "transaction", "stored", "#age", "#checked", "next check"),
                [
                    (
                        topic_link(row["topic"]),
                        group_link(row["group"]) if row["group"] != row["topic"] else "–",
                        e("span", row["transaction_id"], class_="id"),
                        when(row["stored_ms"]),
                        age_text(row["age_ms"]),
                        row["checked"],
                        when(row["next_check_ms"]),
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


async def users_page(api: Api, asked: PageRequest) -> Content:
    """Return the page of the users and their rules."""
    query = asked.query
    try:
        found = await users(api, asked)
    except PocketMQError as error:
        return [heading("Users"), e("p", error.message, class_="error")]
    return [
        heading(
            "Users",
            e("p", f"{found['total']:,}; `pocketmq user` and `pocketmq acl` change them"),
            search_box("/users", query, "a user"),
        ),
        e(
            "form",
            field("User", "user", value=query.get("user", ""), required=True),
            field("Action", "action", value=query.get("action", "Pub"), required=True),
            field("Resource", "resource", value=query.get("resource", "Topic:"), required=True),
            field("From", "from", value=query.get("from", "127.0.0.1")),
            e("button", "May they?"),
            action="/users",
            class_="find card",
        ),
        await _decision(api, asked),
        e(
            "section",
            table(
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


async def _decision(api: Api, asked: PageRequest) -> Content:
    if not asked.query.get("user"):
        return None
    try:
        told = await check(api, asked, asked.query["user"])
    except PocketMQError as error:
        return e("p", error.message, class_="error", role="alert")
    kind = "good" if told["decision"] == "Allow" else "bad"
    decision = e("span", told["decision"], class_=f"badge {kind}")
    pairs = (("Decision", decision), ("Reason", told["reason"]), ("Rule", told["policy"] or "–"))
    return e("section", facts(pairs), class_="card", id="decision")


def _rules(rules: list[Document]) -> Content:
    if not rules:
        return "–"
    lines = [
        f"{one['decision']} {', '.join(one['actions'])} on {one['resource']}"
        + (f" from {', '.join(one['sources'])}" if "sources" in one else "")
        for one in rules
    ]
    return e("ul", *(e("li", line) for line in lines), class_="rules")
