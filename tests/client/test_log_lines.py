"""What the client's log lines say under ordinary logging: what they are about stands in the text."""

from __future__ import annotations

import ast
import logging

import pytest

from pocketmq.client import PushConsumer
from pocketmq.client.message_batch import MessageBatch
from pocketmq.client.pushing.failures import FailureReport
from pocketmq.client.queue import Queue
from pocketmq.client.received_message import FetchedRun
from pocketmq.client.tasks import TaskGroup
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import ConfigError
from pocketmq.proto.facts import Facts
from pocketmq.proto.record import NO_HOST, encode_run

from ..repository.source_tree import code_files, name_of, tree_of

LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}


def log_calls() -> list[tuple[str, ast.Call]]:
    """Every call of a logger in the client, with its place."""
    return [
        (f"{name_of(path)}:{node.lineno}", node)
        for path in code_files()
        if name_of(path).startswith("client/")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == "logger"
        and node.func.attr in LEVELS
    ]


def test_every_line_of_the_client_has_its_facts_in_the_text() -> None:
    calls = log_calls()
    assert len(calls) > 40
    bare = []
    for where, call in calls:
        assert isinstance(call.func, ast.Attribute)
        event, *rest = call.args[1:] if call.func.attr == "log" else call.args
        ends_with_facts = (
            isinstance(event, ast.Constant)
            and str(event.value).endswith(" %s")
            and str(event.value).count("%") == len(rest)
        )
        facts = rest[-1] if rest else None
        if isinstance(facts, ast.Call):
            has_facts = getattr(facts.func, "id", "") == "Facts" and bool(facts.keywords)
        else:
            has_facts = isinstance(facts, ast.Name) and facts.id in ("facts", "many")
        if not (ends_with_facts and has_facts) or any(k.arg == "extra" for k in call.keywords):
            bare.append(where)

    assert bare == [], 'say what a line is about: logger.warning("queue lost %s", Facts(queue=…))'


def test_facts_stand_in_the_text_and_can_be_had_by_name(caplog: pytest.LogCaptureFixture) -> None:
    facts = Facts(queue=Queue("orders", "a", 3), offset=None, reason="not in time", count=2)

    logging.getLogger("pocketmq.test").warning("queue lost %s", facts)

    (record,) = caplog.records
    assert record.getMessage() == 'queue lost queue=orders[a:3] reason="not in time" count=2'
    assert isinstance(record.args, dict)
    assert record.args["count"] == 2


@pytest.fixture
def batch() -> MessageBatch:
    rows = [(b"%d" % n, b"UNIQ_KEY\x01%032X\x02" % n) for n in range(3)]
    records, _ = encode_run("orders", 3, rows, born_timestamp_ms=1, born_host=NO_HOST)
    return MessageBatch(FetchedRun("a", bytes(records)))


async def test_what_fails_10_011_times_in_3_s_is_told_once_a_second_with_a_count(
    caplog: pytest.LogCaptureFixture, batch: MessageBatch
) -> None:
    clock, tasks = VirtualClock(0), TaskGroup()
    telling = FailureReport("billing", clock, tasks)
    queue, error = Queue("orders", "a", 3), ValueError("no such account")

    for count in (1, 10, 5_000, 5_000):
        for _ in range(count):
            telling.log("listener failed", queue, batch[1], "ValueError: no such account", error)
        if count > 1:
            await clock.advance(1_000)
    telling.log("listener failed", queue, batch[1], "late", error)
    telling.flush()
    await tasks.close()

    lines = [record.getMessage() for record in caplog.records]
    about = f"group=billing topic=orders queue=orders[a:3] offset={batch[1].queue_offset} id={batch[1].message_id}"
    reason = 'reason="ValueError: no such account"'
    assert lines == [
        f"listener failed {about} {reason}",
        f"listener failed count=10 {about} {reason}",
        f"listener failed count=5000 {about} {reason}",
        f"listener failed count=5000 {about} {reason}",
        f"listener failed {about} reason=late",
    ]
    assert all(record.exc_info and record.exc_info[1] is error for record in caplog.records)


class Callable:
    def __call__(self, message: object) -> None: ...


def generator(message: object):  # type: ignore[no-untyped-def]
    yield message


@pytest.mark.parametrize(
    ("listener", "says"),
    [
        (lambda: None, r"<lambda>\(\) cannot be called with one argument, the message"),
        (lambda message, connection: None, "missing a required argument: 'connection'"),
        (lambda *, message: None, "cannot be called with one argument"),
        ("charge", "listener is 'charge' \\(str\\): pass a function of one argument"),
        (generator, "is a generator, whose body would never run"),
        (Callable, r"Callable\(\) cannot be called|Callable"),
    ],
    ids=["nothing", "two", "keyword", "text", "generator", "class"],
)
def test_a_listener_that_cannot_be_called_with_a_message_is_refused_at_once(
    listener: object, says: str
) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        PushConsumer("billing", "orders", listener)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=says):
        PushConsumer("billing", "orders").listener(listener)  # type: ignore[type-var]

    assert caught.value.details["field"] == "listener"


@pytest.mark.parametrize(
    "listener",
    [lambda message: None, lambda *all: None, lambda message, retries=3: None, Callable(), print],
    ids=["one", "any", "default", "object", "built-in"],
)
def test_a_listener_that_can_be_called_with_a_message_is_taken(listener: object) -> None:
    PushConsumer("billing", "orders", listener)  # type: ignore[arg-type]
