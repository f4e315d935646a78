"""Pages of hostile data have the elements of pages of harmless data: names, keys and bodies stay text."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest
from jinja2 import UndefinedError

from pocketmq.tools.console.render import render

HOSTILE = """"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;{{ 7 * 7 }}{% raw %}/?#\x00\u202e"""
VISITOR = {"token": "t", "user": "TEXT", "session": "s"}
SERVER = {"broker_name": "TEXT", "virtual_clock": True, "now_ms": 1}
PAGING = {"total": 120, "skip": 20, "limit": 20}
LAG = {
    "group": "TEXT",
    "topic": "TEXT",
    "queue": 1,
    "lag": 1_000,
    "oldest_unread_age_ms": 9,
    "verdict": "TEXT",
    "reasons": ["TEXT", "TEXT"],
}
BROKER = {
    "broker_name": "TEXT",
    "version": "TEXT",
    "code": "TEXT",
    "cluster": "TEXT",
    "started_ms": 1,
    "now_ms": 1,
    "virtual_clock": True,
    "writable": False,
    "not_writable_because": "TEXT",
    "delayed_waiting": 1,
    "transactions_open": 1,
    "disk_used_ratio": 0.5,
    "rss_bytes": 1,
    "max_log_offset": 3,
    "flushed_offset": 2,
    "dispatched_offset": 1,
}
RATES = {
    name: [1.0, 2.0]
    for name in ("in_messages_per_s", "out_messages_per_s", "in_bytes_per_s", "out_bytes_per_s")
}
REPLICA = {
    "set": "TEXT",
    "replica": 2,
    "master": 1,
    "epoch": 7,
    "confirmed_bytes": 800,
    "end_bytes": 1_000,
    "others": [{"replica": 1, "in_sync": 0, "behind_bytes": 200, "behind_seconds": 0.04}],
}
OVERVIEW = {
    "broker": BROKER,
    "rates": RATES,
    "figures": {"pocketmq_broker_connections": 2},
    "official_clients": {"TEXT": 1},
    "replica": REPLICA,
    "next_due": [{"due_ms": 5, "messages": 1}],
    "lags": [LAG],
    "groups": 300,
    "groups_looked_at": 200,
    "sample_ms": 5_000,
}
MESSAGE = {
    "message_id": "TEXT",
    "offset_message_id": "TEXT",
    "topic": "TEXT",
    "queue": 1,
    "queue_offset": 1,
    "log_offset": 1,
    "born_ms": 1,
    "stored_ms": 1,
    "due_ms": None,
    "tag": "TEXT",
    "keys": ["TEXT", "TEXT"],
    "priority": None,
    "reconsume_times": 0,
    "body": "TEXT",
}
WAITS = MESSAGE | {
    "due_ms": 1,
    "recall_handle": "TEXT",
    "waits_at": {"topic": "TEXT", "queue": 0, "offset": 1},
}
LIFE = {
    "error": "",
    "stories": [
        {
            "conclusion": "TEXT",
            "events": [{"kind": "TEXT", "time": 1, "text": "TEXT"}],
            "groups": [{"group": "TEXT", "text": "TEXT"}],
        }
    ],
}
ONE = {
    "row": MESSAGE,
    "life": LIFE,
    "waits": None,
    "dead_letter_of": "",
    "may_be_sent_again": True,
    "body": "TEXT",
    "properties": [("TEXT", "TEXT")],
    "hex": "TEXT",
    "curl": "TEXT",
    "python": "TEXT",
}
LETTER = {
    "offset": 0,
    "died_ms": 1,
    "origin_topic": "TEXT",
    "message_id": "TEXT",
    "reconsume_times": 3,
    "reason": "TEXT",
    "message": MESSAGE,
    "resent": False,
}
GROUP = {
    "lag": 1,
    "settings": {
        "retry_max_times": 3,
        "retry_intervals_ms": [1_000, 2_000],
        "subscription_check": "warn",
    },
    "has_dead_letters": True,
    "conflicts": [{"subscriptions": ["TEXT"], "members": ["TEXT"]}],
    "grace_left_ms": 61_234,
    "members": [
        {
            "member_id": "TEXT",
            "kind": "TEXT",
            "address": "TEXT",
            "subscriptions": ["TEXT"],
            "queues": [1],
        }
    ],
    "clients": [
        {
            "client_id": "TEXT",
            "type": "TEXT",
            "language": "TEXT",
            "version": None,
            "subscriptions": ["TEXT"],
        }
    ],
    "lags": [LAG],
    "queues": [
        {
            "topic": "TEXT",
            "owner": "TEXT",
            **dict.fromkeys(
                ("queue", "offset", "min_offset", "max_offset", "lag", "ready", "in_flight"), 1
            ),
            "oldest_unread_ms": 1,
            "filtered_count": 1,
        }
    ],
}
CONNECTION = {
    "id": 1,
    "peer": "TEXT",
    "secure": False,
    "last_path": "TEXT",
    "user_agent": "TEXT",
    **dict.fromkeys(
        ("age_ms", "calls_begun", "calls_failed", "bytes_read", "bytes_written", "bytes_queued"), 1
    ),
}
POLICY = {"decision": "Deny", "actions": ["TEXT"], "resource": "TEXT", "sources": ["TEXT"]}
NOT_ASKED = {"errors": [{"broker": "TEXT", "error": "TEXT"}], "partial": True, "rows_max": 100}
QUERY = dict.fromkeys(("search", "system", "key", "sql", "from", "user", "resource"), "TEXT")

#: What each template is rendered with, in each of its ways.
PAGES: list[tuple[str, dict[str, Any]]] = [
    ("overview", OVERVIEW),
    ("overview", OVERVIEW | dict.fromkeys(("rates", "figures", "next_due", "replica", "lags"))),
    (
        "overview",
        {
            "brokers": [
                {"broker": "TEXT", "overview": OVERVIEW},
                {"broker": "TEXT", "error": "TEXT"},
            ],
            "lags": [{"broker": "TEXT", **LAG}],
        },
    ),
    (
        "topics",
        PAGING
        | {
            "topics": [
                {
                    "name": "TEXT",
                    "type": "TEXT",
                    "write_queues": 8,
                    "messages": 1_000,
                    "sent_messages": None,
                    "last_sent_ms": 1,
                }
            ]
        },
    ),
    (
        "topics",
        NOT_ASKED
        | {
            "topics": [
                {
                    "name": "TEXT",
                    "type": "",
                    "write_queues": 8,
                    "messages": 1,
                    "sent_messages": 1,
                    "at": ["TEXT"],
                }
            ]
        },
    ),
    (
        "topic",
        {
            "name": "TEXT",
            "type": "",
            "messages": 1,
            "newest": [MESSAGE, MESSAGE | {"body": None, "body_base64": "TEXT", "message_id": ""}],
            "write_queues": 8,
            "read_queues": 8,
            "groups": [{"group": "TEXT", "lag": 1}],
            "queues": [
                {
                    "queue": 0,
                    "min_offset": 0,
                    "max_offset": 9,
                    "min_store_time_ms": 1,
                    "last_stored_ms": None,
                    "messages_per_s": 1.5,
                }
            ],
        },
    ),
    ("messages", {"topic": "", "error": "", "one": None}),
    ("messages", {"topic": "TEXT", "error": "TEXT", "one": None}),
    ("messages", {"topic": "TEXT", "error": "", "one": None, "messages": [MESSAGE]}),
    ("messages", {"topic": "TEXT", "error": "", "one": ONE}),
    ("messages", {"topic": "TEXT", "error": "", "one": ONE | {"dead_letter_of": "TEXT"}}),
    ("messages", {"message_id": "TEXT", "error": "", "one": ONE | {"waits": WAITS}}),
    ("messages", {"message_id": "TEXT", "error": "TEXT", "one": None}),
    (
        "messages",
        {
            "message_id": "TEXT",
            "error": "",
            "one": None,
            "life": {"stories": [], "error": "TEXT"},
        },
    ),
    (
        "groups",
        PAGING
        | {
            "groups": [
                {
                    "name": "TEXT",
                    "verdict": "TEXT",
                    "lag": 1,
                    "oldest_unread_ms": 0,
                    "dead_letters": 1,
                    "retry_max_times": 16,
                }
            ]
        },
    ),
    (
        "groups",
        NOT_ASKED
        | {
            "groups": [
                {
                    "name": "TEXT",
                    "verdicts": ["TEXT", "ok"],
                    "lag": 1,
                    "oldest_unread_ms": 1,
                    "dead_letters": 1,
                    "at": ["TEXT", "TEXT"],
                }
            ]
        },
    ),
    ("group", GROUP),
    ("group", GROUP | {"settings": None, "conflicts": [], "has_dead_letters": False}),
    ("dead_letters", {"groups": [{"group": "TEXT", "dead_letters": 1, "resent": 0}]}),
    ("dead_letters", {"dead_letters": [LETTER], "next_from": 1}),
    (
        "waiting",
        {
            "waiting": 1,
            "to_an_instant": 1,
            "now_ms": 0,
            "next_due_ms": 1,
            "last_due_ms": 1,
            "due": [{"from_ms": 0, "to_ms": 9, "messages": 1}],
            "messages": [WAITS],
            "topics": [{"topic": "TEXT", "messages": 1}],
        },
    ),
    (
        "waiting",
        PAGING
        | {
            "listeners": 1,
            "transactions": [
                {
                    "topic": "TEXT",
                    "group": "TEXT!",
                    "transaction_id": "TEXT",
                    "stored_ms": 1,
                    "age_ms": 1,
                    "checked": 1,
                    "next_check_ms": None,
                }
            ],
        },
    ),
    ("users", {"error": "TEXT"}),
    ("users", PAGING | {"users": [], "check": {"error": "TEXT"}}),
    (
        "users",
        PAGING
        | {
            "check": {"decision": "Deny", "reason": "TEXT", "policy": "TEXT"},
            "users": [
                {
                    "user": "TEXT",
                    "type": "Normal",
                    "status": "enable",
                    "policies": [POLICY],
                    "default_policies": [POLICY],
                }
            ],
        },
    ),
    (
        "server",
        {
            "totals": {"open": 1, "accepted": 1, "refused": 1},
            "connections": [CONNECTION],
            "next_id": 2,
            "official_clients": [
                dict.fromkeys(("client_id", "type", "language", "version", "group"), "TEXT")
            ],
        },
    ),
    (
        "server",
        {
            "path": "TEXT",
            "files": {
                "log": {"files": 1, "bytes": 1},
                "queues": {"queues": 1, "files": 1},
                "index": {"files": 1},
            },
            "retention": {
                "retention_ms": 1_000,
                "disk_expire_percent": 75,
                "disk_force_percent": 85,
                "disk_refuse_percent": 90,
            },
            "writable": False,
            "not_writable_because": "TEXT",
            "min_log_offset": 0,
            "max_log_offset": 1,
            "flush_behind_bytes": 0,
            "dispatch_behind_bytes": 0,
            "disk_used_ratio": 0.123,
            "recovery": {"TEXT": "TEXT"},
        },
    ),
]


def with_text(value: Any, text: str) -> Any:
    """Return VALUE with TEXT for each "TEXT" in it."""
    if isinstance(value, str):
        return value.replace("TEXT", text)
    if isinstance(value, dict):
        return {with_text(key, text): with_text(one, text) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(with_text(one, text) for one in value)
    return value


def shown(template: str, found: dict[str, Any], text: str) -> str:
    data = {
        "title": "TEXT",
        "here": "/topics",
        "links": (("/topics", "Topics"),),
        "visitor": VISITOR,
        "server": SERVER,
        "query": QUERY | ({"group": "TEXT"} if template == "dead_letters" else {}),
        "name": "TEXT",
        "peer": "127.0.0.1:5",
        "found": found,
    }
    return render(template, with_text(data, text))


class Elements(HTMLParser):
    """The elements of a page with the names of their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, ...]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize(("template", "found"), PAGES)
def test_hostile_data_make_no_element_and_no_attribute(
    template: str, found: dict[str, Any]
) -> None:
    harmless, hostile = shown(template, found, "word"), shown(template, found, HOSTILE)
    assert Elements(hostile).tags == Elements(harmless).tags
    assert "word" in Elements(harmless).text
    assert "{{ 7 * 7 }}" in Elements(hostile).text


@pytest.mark.parametrize(("template", "found"), PAGES)
def test_each_row_has_a_cell_for_each_title(template: str, found: dict[str, Any]) -> None:
    page = shown(template, found, "word")
    for table in re.findall(r"<table .*?</table>", page, re.DOTALL):
        head, *rows = re.findall(r"<tr>.*?</tr>", table, re.DOTALL)
        titles = re.findall(r"<th[^>]*>(.*?)</th>", head)
        assert rows
        for row in rows:
            assert re.findall(r'data-label="(.*?)"', row) == titles


def test_hostile_text_is_no_part_of_the_pages_that_refuse_and_ask_for_a_user() -> None:
    data = {"title": "TEXT", "here": "/sign-in", "links": (), "visitor": None, "server": None}
    for more in ({"to": "TEXT", "error": "TEXT"}, {"error": "TEXT"}):
        harmless, hostile = (
            Elements(render("layout", with_text(data | more, text))) for text in ("word", HOSTILE)
        )
        assert harmless.tags == hostile.tags
        assert "{{ 7 * 7 }}" in hostile.text


def test_every_template_is_rendered_here_and_none_lets_markup_through() -> None:
    folder = files("pocketmq.tools.console").joinpath("templates")
    sources = {one.name: one.read_text(encoding="utf-8") for one in folder.iterdir()}
    assert {f"{template}.html" for template, _ in PAGES} == sources.keys() - {
        "layout.html",
        "parts.html",
    }
    for name, source in sources.items():
        assert not re.search(r"\|\s*safe|autoescape|style=|Markup", source), name


def test_a_replica_is_shown_with_the_distance_of_the_others() -> None:
    text = Elements(shown("overview", OVERVIEW, "orders")).text
    for words in ("Replica set orders", "master", "800 of 1,000 bytes", "200 B", "not in sync"):
        assert words in text


def test_the_number_of_retries_is_not_called_tries() -> None:
    """`retry_max_times` 3 means four deliveries."""
    page = shown("group", GROUP, "g")
    assert "up to 3 retries" in Elements(page).text
    assert "Maximum retries" in page
    assert "tries" not in page.lower().replace("retries", "")


def test_a_body_keeps_its_first_line_break() -> None:
    page = shown("messages", {"topic": "t", "error": "", "one": ONE | {"body": "\n<x>"}}, "word")
    assert '<pre class="body">\n\n&lt;x&gt;</pre>' in page


def test_data_without_a_name_that_a_template_wants_are_an_error() -> None:
    with pytest.raises(UndefinedError, match="links"):
        render("layout", {"title": "a", "here": "/", "visitor": None, "server": None})


@pytest.mark.processes
def test_what_a_broker_imports_of_the_console_imports_no_jinja() -> None:
    program = (
        "import sys, pocketmq, pocketmq.client, pocketmq.tools.serve, pocketmq.tools.console.site;"
        "print('jinja2' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
