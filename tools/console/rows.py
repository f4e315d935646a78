"""What several pages of the console have in common: links, searching, paging, rows of lags."""

from __future__ import annotations

from urllib.parse import quote, urlencode

from ..connections import age_text
from .api import Document
from .frame import Content, Html, badge, e, field, form, table


def topic_link(name: str) -> Html:
    """Return topic NAME, which leads to its page."""
    return e("a", name, href=f"/topics/{quote(name, safe='')}")


def group_link(name: str) -> Html:
    """Return group NAME, which leads to its page."""
    return e("a", name, href=f"/groups/{quote(name, safe='')}")


def search_box(path: str, query: dict[str, str], what: str) -> Html:
    """Return a form that finds WHAT by name."""
    value = query.get("search", "")
    box = e(
        "input",
        type="search",
        name="search",
        value=value,
        placeholder=f"Find {what}",
        aria_label=f"Find {what}",
    )
    return e("form", box, e("button", "Find"), action=path, class_="search", role="search")


def create_topic_form(title: str) -> Html:
    """Return a form with TITLE that makes a topic."""
    kinds = e(
        "select",
        *(e("option", kind) for kind in ("NORMAL", "FIFO", "DELAY", "TRANSACTION")),
        name="type",
    )
    return form(
        "/api/topics",
        title,
        field("Name", "name", required=True),
        e("label", "Type", kinds),
        field("Queues", "queues", "number", value=8, min=1, max=1024),
        button="Create",
    )


def paging(path: str, found: Document, query: dict[str, str]) -> Content:
    """Return where the rows before and behind those FOUND are."""
    skip, limit, total = found["skip"], found["limit"], found["total"]
    last = min(skip + limit, total)
    kept = {name: value for name, value in query.items() if name in ("search", "system")}

    def to(start: int, text: str, there: bool) -> Html:
        if not there:
            return e("span", text, class_="off")
        return e("a", text, href=f"{path}?{urlencode({**kept, 'skip': start, 'limit': limit})}")

    if total <= limit and not skip:
        return None
    return e(
        "nav",
        to(max(0, skip - limit), "← Before", skip > 0),
        e("span", f"{min(skip + 1, total):,} to {last:,} of {total:,}"),
        to(skip + limit, "Next →", last < total),
        class_="paging",
        aria_label="Rows",
    )


def lag_table(rows: list[Document], key: str) -> Html:
    """Return rows of the lag report."""
    return table(
        ("group", "topic", "#queue", "#lag", "#oldest", "verdict", "because"),
        [
            (
                group_link(row["group"]),
                topic_link(row["topic"]),
                row["queueId"],
                row["lag"],
                age_text(row["oldestUnreadAgeMs"]) if row.get("oldestUnreadAgeMs") else "–",
                badge(row["verdict"]),
                "; ".join(row["reasons"]),
            )
            for row in rows
        ],
        "No group is behind.",
        key,
    )


def short_body(row: Document) -> str:
    """Return the beginning of a message's body."""
    text = row["body"] if row["body"] is not None else f"base64 {row['body_base64']}"
    return text if len(text) <= 100 else f"{text[:100]}…"
