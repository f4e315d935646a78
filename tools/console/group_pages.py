"""The console's pages of groups, dead letters, connections and the store; pages.py has the others."""

from __future__ import annotations

import json
from urllib.parse import quote, urlencode

from ...proto.duration import format_duration
from ...proto.rpc.pages import PageRequest
from ..connections import age_text, bytes_text
from .api import Api, Document
from .markup import (
    Content,
    Html,
    badge,
    card,
    e,
    facts,
    field,
    form,
    heading,
    row_form,
    table,
    when,
)
from .rows import group_link, lag_table, paging, search_box, short_body, topic_link


async def groups_page(api: Api, asked: PageRequest) -> Content:
    """Return the page of the groups."""
    query = asked.query
    found = await api.groups(asked)
    return [
        heading("Groups", e("p", f"{found['total']:,}"), search_box("/groups", query, "a group")),
        e(
            "section",
            table(
                ("group", "verdict", "#lag", "#oldest unread", "#dead letters", "#tries"),
                [
                    (
                        group_link(row["name"]),
                        badge(row["verdict"]),
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


def _reset_form(name: str) -> Content:
    preview = e(
        "label",
        e("input", type="checkbox", name="preview", data_kind="flag", checked=True),
        "Preview: move nothing",
        class_="flag",
    )
    to = e(
        "label",
        "To",
        e(
            "select",
            e("option", "the end", value="to_last"),
            e("option", "the beginning", value="to_first"),
            name="to",
            data_kind="choice",
        ),
    )
    return form(
        f"/api/groups/{quote(name, safe='')}/reset",
        "Reset offsets",
        field("Topic", "topic", required=True),
        to,
        preview,
        button="Reset",
    )


def _conflicts(found: list[Document]) -> Content:
    if not found:
        return None
    rows = [(", ".join(one["subscriptions"]), ", ".join(one["members"])) for one in found]
    return card(
        "Members read different things",
        e(
            "p",
            "Members of one group have to want the same topics with the same filters: a queue's messages are skipped by"
            " the filter of the member that reads it.",
            class_="error",
        ),
        table(("reads", "members"), rows, "", "conflicts"),
    )


async def group_page(api: Api, asked: PageRequest, name: str) -> Content:
    """Return the page of one group."""
    found = await api.group(asked, name)
    reset = _reset_form(name)
    settings = found["settings"] or {}
    retry = form(
        f"/api/groups/{quote(name, safe='')}",
        "Retries",
        field(
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
    members: list[tuple[Content, ...]] = [
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
        heading(
            name,
            e(
                "p",
                f"lag {found['lag']:,} · at most {settings.get('retry_max_times', '–')} tries, {intervals}",
            ),
            reset,
            retry,
        ),
        e(
            "p",
            e("a", "Dead letters", href=f"/dead-letters?{urlencode({'group': name})}"),
            " are waiting.",
            class_="error",
        )
        if dead["dead_letters"]
        else None,
        _conflicts(found["conflicts"]),
        card(
            "Members",
            table(
                ("member", "client", "address, or language and version", "reads", "#queues"),
                members,
                "Nobody is on.",
                "members",
            ),
        ),
        card("Queues", lag_table(found["lags"], "lags")),
        card(
            "Offsets",
            table(
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


async def dead_letters_page(api: Api, asked: PageRequest) -> Content:
    """Return the page of groups with dead letters, or those of one."""
    query = asked.query
    group = query.get("group", "")
    if not group:
        found = await api.all_dead_letters(asked)
        rows = [
            (
                e("a", one["group"], href=f"/dead-letters?{urlencode({'group': one['group']})}"),
                one["dead_letters"],
            )
            for one in found["groups"]
        ]
        return [
            heading("Dead letters"),
            e(
                "section",
                table(("group", "#dead letters"), rows, "No group has any.", "groups"),
                class_="card",
            ),
        ]
    wanted = {key: value for key, value in query.items() if key in ("from", "limit")}
    found = await api.dead_letters(PageRequest("GET", f"/?{urlencode(wanted)}", {}), group)
    path = f"/api/groups/{quote(group, safe='')}/dead-letters"
    offsets = ", ".join(str(one["offset"]) for one in found["dead_letters"])
    resend = (
        form(
            f"{path}/resend",
            "Send again",
            field("Numbers", "offsets", "numbers", value=offsets, required=True),
            field("To", "topic", placeholder="where each came from"),
            button="Send again",
        )
        if offsets
        else None
    )
    resend_all = (
        form(
            f"{path}/resend",
            "Send all again",
            e("input", type="hidden", name="from", value=0, data_kind="number"),
            field("To", "topic", placeholder="where each came from"),
            button="Send all again",
            confirm=f"Send all dead letters of {group} again? They stay here until they are purged.",
        )
        if offsets
        else None
    )
    purge = (
        form(
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
        e(
            "nav",
            e(
                "a",
                "Next →",
                href=f"/dead-letters?{urlencode({'group': group, 'from': following})}",
            ),
            class_="paging",
        )
        if following is not None
        else None
    )
    return [
        heading("Dead letters", e("p", "of ", group_link(group)), resend, resend_all, purge),
        e(
            "section",
            table(
                ("#number", "died", "from topic", "#failed", "reason", "message", "body"),
                [
                    (
                        one["offset"],
                        when(one["died_ms"]),
                        topic_link(one["origin_topic"]) if one["origin_topic"] else "–",
                        one["reconsume_times"],
                        one["reason"],
                        one["message_id"] or "–",
                        e("code", short_body(one["message"]), class_="body"),
                    )
                    for one in found["dead_letters"]
                ],
                "It has none.",
                "letters",
            ),
            more,
            class_="card",
        ),
    ]


def _close(one: Document) -> Html:
    question = f"Break off the connection of {one['peer']}, with all that is under way on it?"
    return row_form(f"/api/connections/{one['id']}/close", "Close", question, peer=one["peer"])


async def connections_page(api: Api, asked: PageRequest) -> Content:
    """Return the page of who is connected."""
    found = await api.connections(asked)
    totals = found["totals"]
    following = found["next_id"]
    more = (
        e(
            "nav",
            e("a", "Next →", href=f"/connections?{urlencode({'first_id': following})}"),
            class_="paging",
        )
        if following
        else None
    )
    return [
        heading(
            "Connections",
            e(
                "p",
                f"{totals['open']:,} open, {totals['accepted']:,} accepted, {totals['refused']:,} refused",
            ),
        ),
        e(
            "section",
            table(
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
        card(
            "Official clients",
            table(
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


async def store_page(api: Api, asked: PageRequest) -> Content:
    """Return the page of the store."""
    found = await api.store(asked)
    state = (
        e("span", "writable", class_="badge good")
        if found["writable"]
        else e("span", found["not_writable_because"], class_="badge bad")
    )
    files, kept = found["files"], found["retention"]
    percents = (kept[f"disk_{name}_percent"] for name in ("expire", "force", "refuse"))
    return [
        heading(
            "Store",
            e("p", e("code", found["path"])),
            form("/api/store/doctor", "Ask the doctor", button="Look at the files"),
        ),
        card(
            "Files",
            facts(
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
        card(
            "State",
            facts(
                (
                    ("State", state),
                    ("Log", f"{found['min_log_offset']:,} to {found['max_log_offset']:,}"),
                    ("Not on the device yet", bytes_text(found["flush_behind_bytes"])),
                    ("Not in its queue yet", bytes_text(found["dispatch_behind_bytes"])),
                    ("Disk used", f"{found['disk_used_ratio']:.1%}"),
                )
            ),
        ),
        card(
            "Last recovery", e("pre", json.dumps(found["recovery"], indent=2, ensure_ascii=False))
        ),
    ]
