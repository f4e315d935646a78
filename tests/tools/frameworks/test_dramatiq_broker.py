"""What dramatiq does with the broker: actors run, are retried, are delayed, or end as dead letters."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from pocketmq.tools.testing.local_broker import LocalBroker
from pocketmq.tools.testing.servers import BrokerOptions

dramatiq = pytest.importorskip("dramatiq")
dramatiq_broker = pytest.importorskip("pocketmq.tools.frameworks.dramatiq_broker")

LONG_MS = 60_000


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    options = BrokerOptions(clock="system", broker={"invisible_min_ms": 1_000})
    with LocalBroker(tmp_path_factory.mktemp("dramatiq"), options) as running:
        yield running


@pytest.fixture
def broker(kit: LocalBroker, name: str) -> Iterator[Any]:
    made = dramatiq_broker.PocketmqBroker(kit.endpoint, namespace=name, lease_s=60)
    dramatiq.set_broker(made)
    yield made
    made.close()


@pytest.fixture
def worker(broker: Any) -> Iterator[Any]:
    started = dramatiq.Worker(broker, worker_timeout=100, worker_threads=2)
    started.start()
    yield started
    started.stop()


def joined(broker: Any, worker: Any) -> None:
    broker.join("default", interval=10, timeout=LONG_MS)
    worker.join()


def test_actors_run(broker: Any, worker: Any) -> None:
    done = set()

    @dramatiq.actor
    def put(number: int) -> None:
        done.add(number)

    for number in range(50):
        put.send(number)
    joined(broker, worker)
    assert done == set(range(50))


def test_an_actor_that_fails_is_retried(broker: Any, worker: Any) -> None:
    tries = []
    passed = threading.Event()

    @dramatiq.actor(min_backoff=50, max_backoff=50, max_retries=3)
    def fail() -> None:
        tries.append(time.monotonic())
        if len(tries) < 3:
            raise RuntimeError
        passed.set()

    fail.send()
    assert passed.wait(LONG_MS / 1_000)
    joined(broker, worker)
    assert len(tries) == 3


@pytest.mark.long
def test_delays_are_independent(broker: Any, worker: Any) -> None:
    done = []

    @dramatiq.actor
    def note(number: int) -> None:
        done.append((number, time.time()))

    began = time.time()
    note.send_with_options(args=(1,), delay=5_000)
    note.send_with_options(args=(2,), delay=200)
    joined(broker, worker)
    assert [number for number, _ in done] == [2, 1]
    assert done[0][1] - began >= 0.2
    assert done[1][1] - began >= 5.0


def test_what_is_due_in_days_is_sent_on(
    broker: Any, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    @dramatiq.actor
    def note() -> None:
        done.append(time.time())

    began = time.time()
    monkeypatch.setattr(dramatiq_broker, "_AHEAD_MAX_MS", 100)
    note.send_with_options(delay=350)
    joined(broker, worker)
    assert len(done) == 1
    assert done[0] - began >= 0.35


def test_a_message_that_did_not_come_from_a_consumer_is_let_be(broker: Any) -> None:
    broker.declare_queue("default")
    consumer = broker.consume("default")
    stranger = dramatiq.broker.MessageProxy(
        dramatiq.Message(queue_name="default", actor_name="a", args=(), kwargs={}, options={})
    )
    consumer.ack(stranger)
    consumer.nack(stranger)
    consumer.close()


def test_without_retries_left_it_is_a_dead_letter(
    broker: Any, worker: Any, kit: LocalBroker
) -> None:
    @dramatiq.actor(max_retries=0)
    def fail() -> None:
        raise RuntimeError("größe\nof an order")

    sent = fail.send()
    joined(broker, worker)
    (letter,) = kit.dead_letters(broker.topic("default"))
    assert letter.message.keys == (sent.message_id,)
    assert letter.reason == "RuntimeError: größe of an order"


def test_messages_of_actors_that_there_are_not_are_dead_letters(
    broker: Any, worker: Any, kit: LocalBroker
) -> None:
    broker.declare_queue("default")
    broker.enqueue(
        dramatiq.Message(queue_name="default", actor_name="x", args=(), kwargs={}, options={})
    )
    joined(broker, worker)
    (letter,) = kit.dead_letters(broker.topic("default"))
    assert letter.reason.startswith("ActorNotFound")


def test_what_a_stopped_worker_had_not_begun_comes_again(broker: Any) -> None:
    begun, go_on = threading.Event(), threading.Event()
    done = []

    @dramatiq.actor
    def work(number: int) -> None:
        begun.set()
        go_on.wait(LONG_MS / 1000)
        done.append(number)

    for number in range(3):
        work.send(number)
    first = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    first.start()
    assert begun.wait(LONG_MS / 1000)
    threading.Timer(0.2, go_on.set).start()
    first.stop()
    second = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    second.start()
    joined(broker, second)
    second.stop()
    assert sorted(done) == [0, 1, 2]


def test_a_join_gives_up(broker: Any) -> None:
    @dramatiq.actor
    def work() -> None: ...

    work.send()
    with pytest.raises(dramatiq.QueueJoinTimeout):
        broker.join("default", interval=10, timeout=100)
    broker.flush_all()
    broker.join("default", interval=10, timeout=5_000)


def test_queues_that_were_not_declared_are_refused(broker: Any) -> None:
    for call in (broker.consume, broker.flush, broker.join):
        with pytest.raises(dramatiq.QueueNotFound):
            call("nobody's")


def test_a_server_that_is_not_there_is_a_connection_error() -> None:
    nobody = dramatiq_broker.PocketmqBroker("127.0.0.1:1")
    nobody.declare_queue("default")
    with pytest.raises(dramatiq.BrokerConnectionError):
        nobody.consume("default")
    nobody.close()
