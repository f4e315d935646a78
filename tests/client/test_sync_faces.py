"""The synchronous faces over real gRPC on loopback: a cluster in a thread of its own, clients in this one."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from itertools import chain, islice

import pytest

from pocketmq.client import Admin, Message, Producer, PullConsumer, PushConsumer
from pocketmq.client.loop_thread import LoopThread
from pocketmq.client.producing.receipt import SendFuture
from pocketmq.proto.errors import (
    ClientClosed,
    InvalidArgument,
    MessageNotFound,
    RouteNotFound,
    TopicNotFound,
)

from .fake_broker import bodies
from .fake_cluster import FakeCluster, serve


@pytest.fixture
def cluster() -> Iterator[tuple[FakeCluster, str]]:
    """A cluster with topic "orders" of three queues, and its address."""
    served = FakeCluster.of_one("orders", queues=3)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    carrier, port = asyncio.run_coroutine_threadsafe(serve(served), loop).result()
    yield served, f"127.0.0.1:{port}"
    asyncio.run_coroutine_threadsafe(carrier.stop(0), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_send_and_consume(cluster: tuple[FakeCluster, str]) -> None:
    served, address = cluster

    with Producer(address) as producer:
        receipt = producer.send(Message("orders", b"one", key="order-1", tag="t"))
        many = producer.send_many([Message("orders", b"%d" % n) for n in range(5_000)])
    with PullConsumer("billing", "orders", address) as consumer:
        received = list(islice(consumer, 5_001))
        assert list(consumer.messages(timeout_ms=1)) == []

    assert len(many) == 5_000
    assert sorted(m.body for m in received) == sorted([b"one", *(b"%d" % n for n in range(5_000))])
    (first,) = (message for message in received if message.body == b"one")
    assert (first.key, first.tag, first.message_id) == ("order-1", "t", receipt.message_id)
    assert sum(map(len, bodies(served.broker, "orders"))) == 5_001
    assert sum(served.broker.committed.values()) == 5_001


def test_a_delayed_message_is_recalled_once(cluster: tuple[FakeCluster, str]) -> None:
    _, address = cluster

    with Producer(address) as producer:
        receipt = producer.send(Message("orders", b"one", delay="2h"))
        assert producer.recall(receipt) == receipt.message_id
        with pytest.raises(MessageNotFound, match=receipt.message_id):
            producer.recall(receipt.recall_handle)


def test_many_threads_share_a_producer(cluster: tuple[FakeCluster, str]) -> None:
    served, address = cluster
    futures: list[Future[object]] = []

    with Producer(address) as producer:

        def work(name: int) -> None:
            futures.extend(
                producer.send_nowait(Message("orders", b"%d-%d" % (name, n)))  # type: ignore[misc]
                for n in range(200)
            )

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert all(future.done() for future in futures)

    assert sum(map(len, bodies(served.broker, "orders"))) == 800


def test_a_list_that_comes_when_all_before_it_was_acknowledged_and_the_producer_closes_is_sent(
    cluster: tuple[FakeCluster, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, address = cluster
    producer = Producer(address)
    producer.send_many("orders", [b"first"])
    late: Future[object] = Future()
    sender = (
        producer._sender._sender
    )  # What a thread does that has seen it open, and is a little later.
    flush = sender.flush

    async def flush_and_get_more() -> None:
        await flush()
        if not (late.running() or late.done()):
            late.set_running_or_notify_cancel()
            sender.accept_many([Message("orders", b"late")], late)

    monkeypatch.setattr(sender, "flush", flush_and_get_more)
    producer.close()
    assert late.done()
    assert late.exception() is None
    assert sorted(bodies(served.broker, "orders")) == [[b"first"], [b"late"]]


def test_threads_that_send_lists_are_told_of_each_when_the_producer_is_closed_amid_them(
    cluster: tuple[FakeCluster, str],
) -> None:
    served, address = cluster
    acknowledged: list[list[bytes]] = []
    producer = Producer(address)
    sent_some = threading.Semaphore(0)

    def work(name: int) -> None:
        number = 0
        while True:
            row = [b"%d-%d-%d" % (name, number, at) for at in range(100)]
            try:
                assert len(producer.send_many("orders", row)) == 100
            except ClientClosed:
                return
            acknowledged.append(row)
            sent_some.release()
            number += 1

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        assert sent_some.acquire(timeout=30)
    producer.close()
    for thread in threads:
        thread.join(30)

    assert not any(thread.is_alive() for thread in threads)
    stored = set(chain.from_iterable(bodies(served.broker, "orders")))
    assert stored.issuperset(chain.from_iterable(acknowledged))
    for row in bodies(served.broker, "orders"):
        for name in range(4):
            own = [
                tuple(map(int, body.split(b"-"))) for body in row if body.startswith(b"%d-" % name)
            ]
            assert own == sorted(own)


def test_a_callback_that_raises_keeps_nobody_from_hearing(
    cluster: tuple[FakeCluster, str], caplog: pytest.LogCaptureFixture
) -> None:
    _, address = cluster
    heard: list[Future[object]] = []

    def hear(future: Future[object]) -> None:
        heard.append(future)
        raise ZeroDivisionError

    with Producer(address) as producer:
        futures = [producer.send_nowait(Message("orders", b"%d" % n)) for n in range(20)]
        for future in futures:
            future.add_done_callback(hear)  # type: ignore[arg-type]
        producer.flush()
        assert producer.send(Message("orders", b"after")).topic == "orders"

    assert len(heard) == len(set(map(id, heard))) == 20
    assert len([r for r in caplog.records if r.name == "concurrent.futures"]) == 20


def test_threads_that_wait_for_receipts_are_told_of_the_end() -> None:
    producer = Producer("127.0.0.1:1", route_timeout_ms=60_000)
    futures = [producer.send_nowait(Message("orders", b"%d" % n)) for n in range(3)]
    raised: list[BaseException | None] = []
    threads = [
        threading.Thread(target=lambda future=future: raised.append(future.exception(60)))
        for future in futures
    ]
    for thread in threads:
        thread.start()

    producer.close(timeout_ms=1)
    for thread in threads:
        thread.join()

    assert [type(error) for error in raised] == [ClientClosed] * 3


def test_a_small_buffer_holds_the_caller_back(cluster: tuple[FakeCluster, str]) -> None:
    served, address = cluster

    with Producer(address, buffer_memory=2_000) as producer:
        futures = [producer.send_nowait(Message("orders", b"x" * 100)) for _ in range(500)]
        assert len({future.result().message_id for future in futures}) == 500

    assert sum(map(len, bodies(served.broker, "orders"))) == 500


def test_errors_reach_the_caller(cluster: tuple[FakeCluster, str]) -> None:
    _, address = cluster

    with Producer(address) as producer:
        with pytest.raises(TopicNotFound, match="'nowhere'"):
            producer.send(Message("nowhere", b"x"))
        with pytest.raises(InvalidArgument):
            producer.send("x")  # type: ignore[call-overload]
    with pytest.raises(ClientClosed):
        producer.send(Message("orders", b"x"))
    with pytest.raises(ClientClosed):
        producer.flush()


def test_no_thread_is_left_behind(cluster: tuple[FakeCluster, str]) -> None:
    _, address = cluster
    before = client_threads()

    with (
        Producer(address) as producer,
        PullConsumer("billing", "orders", address) as consumer,
        Admin(address) as admin,
    ):
        producer.send(Message("orders", b"x"))
        assert len(consumer.poll(timeout_ms=5_000)) == 1
        assert [topic.name for topic in admin.topics()] == ["orders"]
        assert len(client_threads()) == len(before) + 1

    assert client_threads() == before
    assert LoopThread._shared is None


@pytest.mark.parametrize("kind", [Producer, Admin])
def test_no_thread_is_left_behind_by_a_client_that_does_not_start(
    kind: type[Producer] | type[Admin], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = client_threads()

    async def fails(*_: object) -> None:
        raise OSError("no entropy")

    monkeypatch.setattr(kind, "_start", fails)
    with pytest.raises(OSError, match="no entropy"):
        kind("127.0.0.1:9")

    assert client_threads() == before


def client_threads() -> set[threading.Thread]:
    """Return the threads of clients' loops; other tests of this process may have their own."""
    return {thread for thread in threading.enumerate() if thread.name == "pocketmq-client"}


@pytest.mark.slow
def test_faces_can_be_opened_again_and_again(cluster: tuple[FakeCluster, str]) -> None:
    _, address = cluster

    for _ in range(5):
        with Producer(address) as producer:
            producer.send(Message("orders", b"x"))
    gc.collect()


def test_the_message_under_way_comes_again_after_an_error(cluster: tuple[FakeCluster, str]) -> None:
    _, address = cluster
    with Producer(address) as producer:
        producer.send_many([Message("orders", b"%d" % n, queue=0) for n in range(10)])

    def fail_at_four() -> None:
        with PullConsumer("billing", "orders", address) as consumer:
            for message in consumer:
                if message.body == b"4":
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_at_four()
    with PullConsumer("billing", "orders", address) as consumer:
        assert next(iter(consumer)).body == b"4"
        assert [message.body for message in consumer.poll(2)] == [b"5", b"6"]
        consumer.commit()
    with PullConsumer("billing", "orders", address) as consumer:
        assert consumer.poll(timeout_ms=30_000)[0].body == b"7"
        pulled = consumer.pull("orders", 0, 2, max_messages=1)
        assert [message.body for message in pulled.messages] == [b"2"]
        assert len(consumer.queues("orders")) == 3
    with pytest.raises(ClientClosed):
        consumer.poll()


def test_a_producer_without_servers_fails_soon() -> None:
    with Producer("127.0.0.1:1", route_timeout_ms=50) as producer:
        began = time.monotonic()
        with pytest.raises(RouteNotFound, match=r"'orders'.*127\.0\.0\.1:1"):
            producer.send(Message("orders", b"x"))
        assert time.monotonic() - began < 10


def test_a_synchronous_client_on_its_own_loop_is_refused(cluster: tuple[FakeCluster, str]) -> None:
    _, address = cluster
    errors: list[BaseException] = []

    with Producer(address) as producer:

        def wrong(_: object) -> None:
            try:
                producer.flush()
            except ClientClosed as error:
                errors.append(error)

        future = producer.send_nowait(Message("orders", b"x"))
        future.add_done_callback(wrong)
        future.result()
        producer.flush()

    assert "own event loop" in str(errors[0]) or not errors


@pytest.mark.processes
def test_importing_the_client_brings_in_no_store_and_no_command() -> None:
    heavy = (
        "['pocketmq.store', 'pocketmq.broker', 'pyspark', 'rich', 'click', 'typer', 'yaml', 'grpc']"
    )
    code = f"import sys, pocketmq.client; print([n for n in {heavy} if n in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_values_are_serialized_in_the_callers_thread(cluster: tuple[FakeCluster, str]) -> None:
    _, address = cluster
    threads: list[str] = []

    def serialize(value: int) -> bytes:
        threads.append(threading.current_thread().name)
        return b"%d" % value

    with Producer(address, value_serializer=serialize, key_serializer=str) as producer:
        receipt = producer.send("orders", 17, key=4, tag="t", properties={"a": "b"})
        future = producer.send_nowait("orders", 18)
        future.result()
    with PullConsumer("billing", "orders", address) as consumer:
        received = {message.body: message for message in islice(consumer, 2)}

    assert set(threads) == {threading.current_thread().name}
    first = received[b"17"]
    assert (first.key, first.tag, first.message_id) == ("4", "t", receipt.message_id)
    assert first.properties["a"] == "b"


def test_what_a_consumer_counted_can_be_asked_for_after_its_end(
    cluster: tuple[FakeCluster, str],
) -> None:
    _, address = cluster
    with Producer(address) as producer:
        producer.send_many([Message("orders", b"%d" % n, queue=0) for n in range(10)])
    handled = threading.Semaphore(0)

    with PullConsumer("billing", "orders", address) as pulling:
        pulling.poll(timeout_ms=30_000)
    with PushConsumer("accounts", "orders", lambda _: handled.release(), address) as pushing:
        for _ in range(10):
            assert handled.acquire(timeout=30)

    assert pulling.metrics().handed_out == 10
    assert pushing.metrics().handled == 10


def calls_of(work: Callable[[], object]) -> int:
    """Return how many Python functions WORK calls, in this thread."""
    count = 0

    def note(_frame: object, event: str, _argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_value_goes_the_way_of_a_message(cluster: tuple[FakeCluster, str]) -> None:
    served, address = cluster

    with Producer(address) as producer:
        producer.send("orders", b"0")
        as_message = calls_of(lambda: producer.send_nowait(Message("orders", b"1", key="k")))
        as_value = calls_of(lambda: producer.send_nowait("orders", b"2", key="k"))
        future = producer.send_nowait("orders", b"3", tag="t")

        assert type(future) is SendFuture
        assert future.result().topic == "orders"

    assert as_value <= as_message + 5
    assert sorted(chain.from_iterable(bodies(served.broker, "orders"))) == [b"0", b"1", b"2", b"3"]


async def nothing() -> None: ...


def post(portal: LoopThread) -> Future[None]:
    done: Future[None] = Future()
    portal.post(done.set_result, None)
    return done


def start(portal: LoopThread) -> Future[None]:
    return portal.start(nothing())


def hand_over_until_refused(portal: LoopThread, way: Callable[[LoopThread], Future[None]]) -> bool:
    """Return False if one thing was neither done nor refused."""
    while True:
        try:
            way(portal).result(timeout=20)
        except (ClientClosed, CancelledError):
            return True
        except TimeoutError:
            return False


@pytest.mark.parametrize("way", [post, start])
def test_what_is_handed_over_while_the_last_client_lets_go_is_done_or_refused(
    way: Callable[[LoopThread], Future[None]],
) -> None:
    with ThreadPoolExecutor(4) as threads:
        for _ in range(100):
            portal = LoopThread.acquire()
            ends = [threads.submit(hand_over_until_refused, portal, way) for _ in range(4)]
            portal.release()
            assert all(end.result() for end in ends)
