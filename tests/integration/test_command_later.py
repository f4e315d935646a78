"""Delays, recalls, dead letters and the clock on the command line: on a virtual clock."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pocketmq.client import Message, Producer, PullConsumer

from ..complaint import complaint
from ..served import ServerProcess
from .command import Shell, process

pytestmark = pytest.mark.processes

HOUR = 3_600_000
#: A producer that dies with its transaction open.
HALF = """
import os
from pocketmq.client import Message, Producer
producer = Producer(os.environ["POCKETMQ_NAMESERVER"], group="shop")
with producer.transaction(Message("Sold", b"half", key="k")):
    os._exit(0)
"""


def beginning(log: Path) -> bytes:
    """Return all that the tests put into LOG."""
    with log.open("rb") as file:
        return file.read(1 << 16)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = tmp_path_factory.mktemp("later") / "store"
    with ServerProcess(store, "--clock", "virtual") as running:
        yield running


def test_a_message_comes_at_its_time_and_not_before(call: Shell) -> None:
    call.done("topic", "create", "Timed", "--queues", "1")
    now_ms = call.done("clock", "now")[0]["now_ms"]
    at = datetime.fromtimestamp(now_ms / 1000 + 3 * 3600, UTC).isoformat()

    told = call("send", "Timed", "later", "--delay", "2h")
    (by_instant,) = call.done("send", "Timed", "then", "--at", at)
    (by_level,) = call.done("send", "Timed", "level", "--level", "18")

    assert " of broker-a, due " in told.out
    assert ", recall handle " in told.out
    assert (by_instant["due_ms"], by_level["due_ms"]) == (now_ms + 3 * HOUR, now_ms + 2 * HOUR)
    assert by_instant["recall_handle"]
    assert by_level["recall_handle"] is None
    assert "waiting    3 delayed messages, 0 open transactions\n" in call("brokers").out
    call.done("clock", "advance", "1h59m59s999ms")
    assert call.consumed("Timed") == []
    call.done("clock", "advance", "1ms")
    came = call.consumed("Timed", 2)
    assert {message["body"]: message["stored_ms"] for message in came} == {
        "later": now_ms + 2 * HOUR,
        "level": now_ms + 2 * HOUR,
    }
    call.done("clock", "advance", "1d")
    (last,) = call.consumed("Timed", 1)
    assert last["stored_ms"] == last["due_ms"] == now_ms + 3 * HOUR
    (broker,) = call.done("brokers")
    assert (broker["delayed_waiting"], broker["virtual_clock"]) == (0, True)
    assert broker["now_ms"] == now_ms + 26 * HOUR


def test_a_message_is_had_back_until_it_is_due(call: Shell) -> None:
    call.done("topic", "create", "Recalled", "--queues", "1")
    kept, taken = call.done("send", "Recalled", "kept", "taken", "--delay", "10s")

    assert call("recall", taken["recall_handle"]).out == f"{taken['message_id']}  recalled\n"
    call.done("clock", "advance", "10s")
    (message,) = call.consumed("Recalled", 1)
    late = call("recall", kept["recall_handle"])

    assert message["body"] == "kept"
    assert (late.code, late.out) == (5, "")
    assert "Z: it was delivered, or is about to be" in complaint(late.err)
    assert call.consumed("Recalled") == []


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (
            ("send", "New", "x", "--delay", "4d"),
            2,
            "delay 4d is too long: the limit is 3d (broker.delay_max_ms)",
        ),
        (("send", "New", "x", "--at", "2001-09-09T01:46:40Z"), 2, "01:46:40.000Z has passed"),
        (("recall", "nonsense"), 2, "not a recall handle"),
        (("dead-letters", "purge", "nobody", "--yes"), 3, "group 'nobody' does not exist"),
        (("group", "create", "g", "--retry-intervals", "1ms"), 2, "must be 1s to 3d"),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_stored(
    call: Shell, server: ServerProcess, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    store = Path(server.ready["store"])
    log = store / "commitlog" / f"{0:020d}"
    before = beginning(log)

    done = call(*arguments)

    assert (done.code, done.out) == (code, "")
    assert sentence in complaint(done.err)
    assert beginning(log) == before
    assert not any((store / "consumequeue" / name).exists() for name in ("New", "%DLQ%nobody"))


@pytest.mark.long
def test_what_waits_outlasts_a_stop_and_a_kill(tmp_path: Path) -> None:
    store = tmp_path / "store"
    server = ServerProcess(store, "--clock", "virtual")
    call = Shell(server.nameserver)
    call.done("topic", "create", "Sold", "--queues", "1")
    call.done("send", "Sold", "1h", "--delay", "1h")
    call.done("send", "Sold", "2h", "--level", "18")
    assert process([sys.executable, "-c", HALF], nameserver=server.nameserver).code == 0
    assert server.stop() == 0

    server = ServerProcess(store, "--clock", "virtual")
    call = Shell(server.nameserver)
    (broker,) = call.done("brokers")
    assert (broker["delayed_waiting"], broker["transactions_open"]) == (2, 1)
    call.done("clock", "advance", "1h")
    assert [message["body"] for message in call.consumed("Sold", 1)] == ["1h"]
    server.kill()

    with ServerProcess(store, "--clock", "virtual") as server:
        call = Shell(server.nameserver)
        call.done("clock", "advance", "1h")
        while (body := call.consumed("Sold", 1)[0]["body"]) != "2h":
            assert body == "1h"  # Read again, or delivered again: at least once.
        assert call.consumed("Sold") == []  # The half message has no outcome.


@pytest.mark.long
def test_dead_letters_of_two_brokers_are_told_apart(tmp_path: Path) -> None:
    nameserver = ServerProcess(None, "--port", "0", verb="nameserver")
    where = ("--port", "0", "--clock", "virtual", "--nameserver", nameserver.nameserver, "--name")
    first = ServerProcess(tmp_path / "a", *where, "a", verb="broker")
    second = ServerProcess(tmp_path / "b", *where, "b", verb="broker")
    with nameserver, first, second:
        call = Shell(nameserver.nameserver)
        call.done("topic", "create", "Paid", "--queues", "1")
        with Producer(nameserver.nameserver) as producer:
            for number in range(3):
                producer.send(Message("Paid", b"%d" % number))
        with PullConsumer("billing", "Paid", nameserver.nameserver) as consumer:
            holders = [
                message.broker
                for message in consumer.messages(timeout_ms=1_000)
                if consumer.send_back(message, delay_level=-1, reason=f"on {message.broker}").dead
            ]
        assert sorted(set(holders)) == ["a", "b"]

        unclear = call("dead-letters", "resend", "billing", "0")
        listed = call.done("dead-letters", "list", "billing")
        resent = call("dead-letters", "resend", "billing", "--all")
        purged = call.done("dead-letters", "purge", "billing", "--yes", "--broker", "a")
        left = call.done("dead-letters", "list", "billing", "--all")

        assert unclear.code == 2
        assert "choose one with broker=… or --broker" in unclear.err
        assert all(letter["reason"] == f"on {letter['broker']}" for letter in listed)
        assert sorted(letter["broker"] for letter in listed) == sorted(holders)
        told = [line.split()[:2] for line in resent.out.splitlines()[:-1]]
        assert sorted(told) == sorted([one["broker"], str(one["offset"])] for one in listed)
        assert purged[0]["purged"] == holders.count("a")
        assert [letter["broker"] for letter in left] == ["b"] * holders.count("b")
