"""`pocketmq trace` asks live brokers, and prints what it reads in their files."""

from __future__ import annotations

import socket

import pytest

from ..served import ServerProcess, need_own
from .command import Shell

pytestmark = pytest.mark.processes


@pytest.mark.long
def test_a_live_broker_knows_what_its_files_say(call: Shell, server: ServerProcess) -> None:
    need_own("a port of grpcio has no pages")
    store = str(server.ready["store"])
    call.done("topic", "create", "orders", "--queues", "1")
    (sent,) = call.done("send", "orders", "one", "--key", "k/1")
    call.consumed("orders", 1)

    for words in (
        (sent["message_id"],),
        (sent["offset_message_id"],),
        ("orders/0/0",),
        ("k/1", "--topic", "orders"),
    ):
        live = call("trace", *words, "--json")
        cold = call("trace", *words, store, "--json")
        assert (live.code, live.err) == (0, ""), live
        (told,), (read,) = live.documents, cold.documents
        assert [event["kind"] for event in told["events"]] == [
            event["kind"] for event in read["events"]
        ]
        for name in ("message_id", "topic", "keys", "state"):
            assert told[name] == read[name]
        assert told["broker"] == "broker-a"  # Of files it is the name of their folder.
    shown = call("trace", sent["message_id"])
    assert shown.code == 0
    assert "topic orders" in shown.out
    assert call("trace", "orders/0/0", "--nameserver", server.nameserver).code == 0


def test_what_is_not_there_and_what_is_wrong(call: Shell, server: ServerProcess) -> None:
    need_own("a port of grpcio has no pages")
    nobody = call("trace", "00FF")
    assert (nobody.code, "message '00FF' not found (asked 1 broker)" in nobody.err) == (3, True)
    store = str(server.ready["store"])
    assert call("trace", "00FF", store, "--nameserver", server.nameserver).code == 2
    assert call("trace", "00FF", "--scan").code == 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        assert call("trace", "00FF", "--nameserver", address).code == 4
