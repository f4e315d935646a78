"""Dead letters that were sent again are hidden, and each leads to the history of its message."""

from __future__ import annotations

import json
import re
from html import unescape
from urllib.request import urlopen

import pytest

from pocketmq.client import PullConsumer

from ..served import ServerProcess
from .command import Shell

pytestmark = pytest.mark.processes

TOPIC, GROUP = "orders", "billing"


def test_what_was_sent_again_is_hidden(call: Shell, server: ServerProcess) -> None:
    call.done("topic", "create", TOPIC, "--queues", "1")
    call.done("send", TOPIC, "zero", "one", "two")
    with PullConsumer(GROUP, TOPIC, server.nameserver) as consumer:
        died = 0
        while died < 3:
            for message in consumer.poll(20_000):
                consumer.send_back(message, delay_level=-1, reason="no use")
                died += 1

    assert call("dead-letters", "resend", GROUP, "1").code == 0

    def offsets(*options: str) -> list[tuple[int, bool]]:
        found = call.done("dead-letters", "list", GROUP, *options)
        return [(letter["offset"], letter["resent"]) for letter in found]

    assert offsets() == [(0, False), (2, False)]
    assert offsets("--all") == [(0, False), (1, True), (2, False)]
    assert "resent" not in call("dead-letters", "list", GROUP).out
    assert "resent" in call("dead-letters", "list", GROUP, "--all").out

    address = f"http://{server.ready['broker']}"

    def shown(path: str) -> str:
        with urlopen(address + path) as page:
            return str(page.read().decode())

    listed = json.loads(shown(f"/api/groups/{GROUP}/dead-letters"))["dead_letters"]
    assert [one["offset"] for one in listed] == [0, 2]
    groups = json.loads(shown("/api/dead-letters"))["groups"]
    assert groups == [{"group": GROUP, "dead_letters": 2, "resent": 1}]

    page = shown(f"/dead-letters?group={GROUP}")
    links = re.findall(r'href="(/messages/[^"]+)"', page)
    assert len(links) == 2
    history = shown(unescape(links[0]))
    assert "dead letter of billing" in history
    by_id_alone = shown(unescape(links[0]).partition("?")[0])
    assert "dead letter of billing" in by_id_alone
    assert "not found. Check the id" in shown("/messages/00FF")

    assert call("dead-letters", "resend", GROUP, "--all").out.splitlines()[-1].startswith("2 of 2")
    assert offsets() == []
    assert json.loads(shown("/api/dead-letters"))["groups"] == []
    assert json.loads(shown("/api/dead-letters?all=true"))["groups"][0]["resent"] == 3
