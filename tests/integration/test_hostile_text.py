"""A sender's escape sequences in bodies, keys, tags and properties, as each verb prints them on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Iterator

import pytest

from pocketmq.client import Admin, Message, Producer, PullConsumer

from ..served import ServerProcess
from .command import COMMAND

pytestmark = pytest.mark.processes

EVIL = "\x1b]0;owned\x07\x1b[2J\x1b]52;c;Zm9v\x07\x9b2J\u202e[red]x[/red]\x1b[8m"
#: Colours are rich's own, but the ones that hide text.
STYLE = re.compile(r"\x1b\[(?!8m)[0-9;]*m")
HARMFUL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = tmp_path_factory.mktemp("hostile") / "store"
    with ServerProcess(store, "--clock", "virtual") as running:
        with Admin(running.nameserver) as admin:
            admin.create_topic("orders", queues=1)
        with Producer(nameservers=running.nameserver) as producer:
            evil = Message(
                "orders", EVIL.encode(), key=f"k{EVIL}", tag="t\u202egnp", properties={"own": EVIL}
            )
            for message in (evil, Message("orders", b"\xff" + EVIL.encode(), key="k")):
                producer.send(message)
        with PullConsumer("billing", "orders", running.nameserver) as consumer:
            for received in consumer.poll(2, 60_000):
                consumer.send_back(received, delay_level=-1, reason=f"why{EVIL}")
            consumer.commit()
        yield running


def on_terminal(server: ServerProcess, *arguments: str) -> str:
    """Return what the command with ARGUMENTS writes to a terminal of 200 columns."""
    ours, its = pty.openpty()
    environment = os.environ | {
        "POCKETMQ_NAMESERVER": server.nameserver,
        "TERM": "xterm-256color",
        "COLUMNS": "200",
    }
    started = subprocess.Popen(
        [*COMMAND, *arguments], stdin=its, stdout=its, stderr=its, env=environment
    )
    os.close(its)
    found = bytearray()
    while True:
        try:
            data = os.read(ours, 65_536)
        except OSError:  # Nobody has the other end any more.
            break
        if not data:
            break
        found += data
    os.close(ours)
    assert started.wait(60) in (0, 1, 2, 3), bytes(found)
    return found.decode(errors="replace")


@pytest.mark.parametrize(
    "words",
    [
        "consume orders --group all --limit 2 --timeout 60",
        "consume orders --group json --limit 2 --timeout 60 --json",
        "find --topic orders --key k",
        "find --topic orders --queue 0 --offset 0",
        "find --topic orders --queue 0 --offset 0 --json",
        "find --topic orders --tag none{evil}",
        "lookup {store} --topic orders --queue 0 --offset 0",
        "lookup {store} --topic orders --queue 0 --offset 0 --json",
        "why orders/0/0 {store}",
        "inspect {store}",
        "inspect {store} log",
        "inspect {store} log --jsonl",
        "inspect {store} record 0",
        "inspect {store} --json",
        "dead-letters list billing",
        "dead-letters list billing --json",
        "topic describe none{evil}",
        "lag --group none{evil}",
        "lint",
        "top --once",
        "connections",
        "doctor {store}{evil}",
        "none{evil}",
    ],
)
def test_no_verb_prints_what_a_terminal_would_act_on(server: ServerProcess, words: str) -> None:
    arguments = [
        word.format(store=server.ready["store"], evil=EVIL.replace(" ", ""))
        for word in words.split(" ")
    ]
    shown = STYLE.sub("", on_terminal(server, *arguments))
    assert shown.strip(), words
    assert not HARMFUL.findall(shown.replace("\r\n", "\n")), shown
    assert "\r" not in shown.replace("\r\n", "\n"), shown
