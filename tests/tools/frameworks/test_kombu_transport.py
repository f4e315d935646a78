"""What kombu asks of a transport, of queues and exchanges, on a broker whose time the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pocketmq.proto.errors import ConnectionLost, InvalidArgument
from pocketmq.tools.testing.local_broker import LocalBroker

kombu = pytest.importorskip("kombu")
kombu_transport = pytest.importorskip("pocketmq.tools.frameworks.kombu_transport")

LONG_S = 20
SOON_S = 0.1


@pytest.fixture
def connection(frameworks_broker: LocalBroker) -> Iterator[Any]:
    with kombu.Connection(f"pocketmq://{frameworks_broker.endpoint}") as connected:
        yield connected


def taken(connection: Any, queue: Any, count: int, **named: Any) -> list[Any]:
    """Return the next COUNT messages of QUEUE."""
    found: list[Any] = []
    with kombu.Consumer(
        connection, [queue], callbacks=[lambda _, message: found.append(message)], **named
    ):
        while len(found) < count:
            connection.drain_events(timeout=LONG_S)
    return found


def nothing(connection: Any, queue: Any) -> bool:
    """Does nothing come of QUEUE?"""
    with kombu.Consumer(connection, [queue], callbacks=[]), pytest.raises(TimeoutError):
        connection.drain_events(timeout=SOON_S)
    return True


def publish(connection: Any, body: Any, queue: Any, **named: Any) -> None:
    named.setdefault("exchange", queue.exchange)
    named.setdefault("routing_key", queue.routing_key)
    named.setdefault("declare", [queue])
    kombu.Producer(connection).publish(body, **named)


def test_a_message_arrives_as_it_was_published(connection: Any, name: str) -> None:
    queue = kombu.Queue(name, routing_key=name)
    publish(connection, {"n": 1}, queue, headers={"a": "b"}, correlation_id="task-1")
    (message,) = taken(connection, queue, 1)
    assert message.payload == {"n": 1}
    assert message.headers["a"] == "b"
    assert message.properties["correlation_id"] == "task-1"
    assert not message.delivery_info["redelivered"]
    message.ack()
    assert nothing(connection, queue)


def test_names_that_rocketmq_forbids_are_good(connection: Any, name: str) -> None:
    queue = kombu.Queue(f"{name}.a/b é")
    publish(connection, "x", queue, exchange="", routing_key=queue.name)
    assert taken(connection, queue, 1, no_ack=True)[0].payload == "x"


def test_a_message_is_found_by_its_correlation_id(
    connection: Any, name: str, frameworks_broker: LocalBroker
) -> None:
    publish(connection, "x", kombu.Queue(name), exchange="", routing_key=name, correlation_id="id7")
    (stored,) = frameworks_broker.messages(name)
    assert stored.keys == ("id7",)


def test_requeued_it_comes_again_and_says_so(connection: Any, name: str) -> None:
    queue = kombu.Queue(name)
    publish(connection, "x", queue, exchange="", routing_key=name)
    taken(connection, queue, 1)[0].requeue()
    (again,) = taken(connection, queue, 1)
    assert again.delivery_info["redelivered"]
    again.ack()


def test_rejected_it_is_a_dead_letter(
    connection: Any, name: str, frameworks_broker: LocalBroker
) -> None:
    queue = kombu.Queue(name)
    publish(connection, "x", queue, exchange="", routing_key=name)
    taken(connection, queue, 1)[0].reject()
    assert nothing(connection, queue)
    assert len(frameworks_broker.dead_letters(name)) == 1


def test_past_its_delivery_limit_it_is_a_dead_letter(
    connection: Any, name: str, frameworks_broker: LocalBroker
) -> None:
    queue = kombu.Queue(name, queue_arguments={"x-delivery-limit": 1})
    publish(connection, "x", queue, exchange="", routing_key=name)
    for _ in range(2):
        taken(connection, queue, 1)[0].requeue()
    assert nothing(connection, queue)
    assert len(frameworks_broker.dead_letters(name)) == 1


def test_what_a_closed_connection_had_comes_again(
    connection: Any, name: str, frameworks_broker: LocalBroker
) -> None:
    queue = kombu.Queue(name)
    with kombu.Connection(f"pocketmq://{frameworks_broker.endpoint}") as first:
        for number in range(3):
            publish(first, number, queue, exchange="", routing_key=name)
        taken(first, queue, 1)  # Two more may wait in the inbox.
    found = taken(connection, queue, 3)
    assert sorted(one.payload for one in found) == [0, 1, 2]
    for one in found:
        one.ack()


def test_no_more_is_handed_out_than_was_asked_for(connection: Any, name: str) -> None:
    queue = kombu.Queue(name)
    for number in range(5):
        publish(connection, number, queue, exchange="", routing_key=name)
    found: list[Any] = []
    with kombu.Consumer(
        connection, [queue], callbacks=[lambda _, message: found.append(message)], prefetch_count=2
    ):
        for _ in range(2):
            connection.drain_events(timeout=LONG_S)
        with pytest.raises(TimeoutError):
            connection.drain_events(timeout=SOON_S)
        found[0].ack()
        connection.drain_events(timeout=LONG_S)
    assert [one.payload for one in found] == [0, 1, 2]


def test_an_eta_is_the_brokers_business(
    connection: Any,
    name: str,
    frameworks_broker: LocalBroker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = kombu.Queue(name)
    began_ms, moved_ms = frameworks_broker.now(), 0
    monkeypatch.setattr(kombu_transport, "_now_ms", lambda: began_ms + moved_ms)
    now = datetime.fromtimestamp(began_ms / 1000, UTC)
    for hours in (2, 40):
        eta = (now + timedelta(hours=hours)).isoformat()
        publish(connection, hours, queue, exchange="", routing_key=name, headers={"eta": eta})
    assert nothing(connection, queue)
    assert frameworks_broker.messages(name) == []
    frameworks_broker.advance("2h")
    assert taken(connection, queue, 1, no_ack=True)[0].payload == 2
    frameworks_broker.advance("22h")
    moved_ms = 24 * 3_600_000
    assert nothing(connection, queue)  # The stage of the other one is over: it is sent on.
    assert len(frameworks_broker.messages(name)) == 2
    frameworks_broker.advance("16h")
    assert taken(connection, queue, 1, no_ack=True)[0].payload == 40


def test_priorities_are_those_of_the_queue(connection: Any, name: str) -> None:
    queue = kombu.Queue(name, max_priority=9)
    for priority in (3, 6, 3, 9):
        publish(connection, priority, queue, exchange="", routing_key=name, priority=priority)
    assert [one.payload for one in taken(connection, queue, 4, no_ack=True)] == [9, 6, 3, 3]


def test_what_expired_does_not_come(
    connection: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = kombu.Queue(name)
    publish(connection, "old", queue, exchange="", routing_key=name, expiration=60)
    publish(connection, "good", queue, exchange="", routing_key=name, expiration=600)
    real_ms = kombu_transport._now_ms
    monkeypatch.setattr(kombu_transport, "_now_ms", lambda: real_ms() + 120_000)
    assert taken(connection, queue, 1, no_ack=True)[0].payload == "good"


def test_a_task_of_celery_that_expired_comes_so_that_its_worker_revokes_it(
    connection: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = kombu.Queue(name)
    headers = {"expires": datetime.now(UTC).isoformat()}
    publish(connection, "x", queue, exchange="", routing_key=name, expiration=60, headers=headers)
    real_ms = kombu_transport._now_ms
    monkeypatch.setattr(kombu_transport, "_now_ms", lambda: real_ms() + 120_000)
    assert taken(connection, queue, 1, no_ack=True)[0].payload == "x"


def test_direct_and_topic_exchanges_route_by_key(connection: Any, name: str) -> None:
    direct = kombu.Exchange(f"{name}-direct", type="direct")
    one = kombu.Queue(f"{name}-1", direct, routing_key="a")
    two = kombu.Queue(f"{name}-2", direct, routing_key="b")
    publish(connection, "x", one, declare=[one, two], routing_key="b")
    assert taken(connection, two, 1, no_ack=True)
    assert nothing(connection, one)
    topic = kombu.Exchange(f"{name}-topic", type="topic")
    wide = kombu.Queue(f"{name}-3", topic, routing_key="t.*")
    narrow = kombu.Queue(f"{name}-4", topic, routing_key="t")
    publish(connection, "y", wide, declare=[wide, narrow], routing_key="t.1")
    assert taken(connection, wide, 1, no_ack=True)
    assert nothing(connection, narrow)


def test_a_fanout_reaches_each_connection(
    connection: Any, name: str, frameworks_broker: LocalBroker
) -> None:
    exchange = kombu.Exchange(name, type="fanout", durable=False)
    with kombu.Connection(f"pocketmq://{frameworks_broker.endpoint}") as other:
        queues = []
        for number, one in enumerate((connection, other)):
            queue = kombu.Queue(f"{name}.{number}", exchange, auto_delete=True, durable=False)
            queue(one).declare()
            queues.append(queue)
        kombu.Producer(connection).publish("all", exchange=exchange, declare=[exchange])
        for one, queue in zip((connection, other), queues, strict=True):
            assert taken(one, queue, 1, no_ack=True)[0].payload == "all"


def test_a_simple_queue_gets_and_looks(connection: Any, name: str) -> None:
    with closing(connection.SimpleQueue(name)) as queue:
        queue.put({"a": 1})
        message = queue.get(timeout=LONG_S)
        assert message.payload == {"a": 1}
        message.ack()
        with pytest.raises(queue.Empty):
            queue.get_nowait()


def test_a_queue_is_purged_and_deleted(connection: Any, name: str) -> None:
    queue = kombu.Queue(name)(connection)
    queue.declare()
    for _ in range(3):
        publish(connection, "x", queue, exchange="", routing_key=name)
    assert queue.queue_declare(passive=True).message_count == 3
    assert queue.purge() == 3
    queue.delete()
    with pytest.raises(connection.channel_errors):
        queue.queue_declare(passive=True)


@pytest.mark.parametrize("timeout_s", [30, 30.5, "30.5"])
def test_a_visibility_timeout_is_any_number_of_seconds(
    frameworks_broker: LocalBroker, name: str, timeout_s: Any
) -> None:
    options = {"visibility_timeout": timeout_s}
    url = f"pocketmq://{frameworks_broker.endpoint}"
    with kombu.Connection(url, transport_options=options) as connection:
        queue = kombu.Queue(name, routing_key=name)
        publish(connection, "x", queue)
        (message,) = taken(connection, queue, 1)
        assert message.payload == "x"
        frameworks_broker.advance("29s")
        message.ack()


@pytest.mark.parametrize("timeout_s", [float("nan"), float("inf"), 10**400, 0, -1, "long", None])
def test_a_visibility_timeout_that_is_no_lease_is_refused(timeout_s: Any) -> None:
    options = {"visibility_timeout": timeout_s}
    connection = kombu.Connection("pocketmq://127.0.0.1:1", transport_options=options)
    with pytest.raises(InvalidArgument, match=r"visibility_timeout is .* up to 43200"):
        connection.transport.establish_connection()


def test_a_broker_that_is_not_there_is_a_connection_error() -> None:
    connection = kombu.Connection("pocketmq://127.0.0.1:1")
    with pytest.raises(ConnectionLost) as told:
        connection.transport.establish_connection()
    assert isinstance(told.value, connection.connection_errors)
