"""What the broker itself appends wakes whoever waits for it, and is called safe when it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketmq.broker.events import BrokerEvents
from pocketmq.broker.messages.appender import Appender
from pocketmq.proto.errors import PocketMQError, StoreFull

from ...runs import bodies_of, make_run, open_store


def test_listeners_and_waiting_fetches_hear_once_of_each_queue(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    woken: list[tuple[str, int]] = []
    heard: list[str] = []
    appends = Appender(store, woken.append)
    appends.listen("A", 0, lambda: heard.append("A/0"))
    appends.listen("A", 0, lambda: heard.append("A/0 too"))

    outcomes = appends.append(
        [make_run("A", 0, [b"1"]), make_run("B", 1, [b"2"]), make_run("A", 0, [b"3"])]
    )

    assert [len(outcome) for outcome in outcomes if not isinstance(outcome, PocketMQError)] == [
        1,
        1,
        1,
    ]
    assert woken == [("A", 0), ("B", 1)]
    assert heard == ["A/0", "A/0 too"]
    assert bodies_of(store, "A", 0) == [b"1", b"3"]
    store.close()


def test_a_listener_that_fails_keeps_no_other_from_hearing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(tmp_path)
    heard: list[str] = []

    def fails(*_: object) -> None:
        raise StoreFull("no memory for a map")

    events = BrokerEvents(messages_stored=[fails, heard.append])
    appends = Appender(store, fails, events=events)
    appends.listen("A", 0, fails)
    appends.listen("A", 0, lambda: heard.append("A/0"))

    (outcome,) = appends.append([make_run("A", 0, [b"1"])])

    assert not isinstance(outcome, PocketMQError)
    assert heard == ["A/0", "A"]
    assert caplog.text.count("listener failed") == 3
    store.close()


def test_with_asynchronous_flushing_safe_is_at_once(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    appends = Appender(store, lambda key: None)
    told: list[PocketMQError | None] = []

    appends.when_safe(store.max_log_offset + 1, told.append)

    assert told == [None]
    store.close()


def test_with_synchronous_flushing_safe_is_on_the_device(tmp_path: Path) -> None:
    store = open_store(tmp_path, flush="sync")
    appends = Appender(store, lambda key: None)
    told: list[tuple[PocketMQError | None, int]] = []
    (outcome,) = appends.append([make_run("A", 0, [b"1"])])
    assert not isinstance(outcome, PocketMQError)

    appends.when_safe(outcome.end_offset, lambda error: told.append((error, store.flushed_offset)))
    store.flush()

    assert told == [(None, outcome.end_offset)]
    store.close()
