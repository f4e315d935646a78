"""Tasks are lent one by one, renewed, given back and buried; leases of who is gone run out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial

import pytest

from pocketmq.proto.errors import ClientClosed, ConnectionLost, PocketMQError, TopicNotFound
from pocketmq.tools.frameworks.task_queues import Task, TaskQueues, topic_of
from pocketmq.tools.testing.local_broker import LocalBroker

from ...integration.test_forked_processes import in_a_fork

SOON_S = 0.2
LONG_S = 20


def got(queues: TaskQueues, name: str) -> Task:
    task = queues.get(name, LONG_S)
    assert task is not None
    return task


def finished(queues: TaskQueues, name: str) -> bool:
    """Wait until nothing of NAME is left."""
    end_s, pause = time.monotonic() + LONG_S, threading.Event()
    while queues.size(name):
        assert time.monotonic() < end_s
        pause.wait(0.01)
    return True


def test_names_become_topics_that_differ() -> None:
    assert topic_of("celery") == "celery"
    assert topic_of("celery.pidbox") == "celery%2Epidbox"
    assert topic_of("a%2Eb") == "a%252Eb"
    assert topic_of("é b") == "%C3%A9%20b"


def test_a_task_that_is_finished_does_not_come_again(queues: TaskQueues, name: str) -> None:
    queues.declare(name)
    queues.send(name, b"one", key="id-1")
    task = got(queues, name)
    assert (task.body, task.attempt, queues.size(name)) == (b"one", 1, 1)
    queues.finish(task)
    assert finished(queues, name)
    assert queues.get(name, SOON_S) is None


def test_one_that_is_given_back_comes_again_at_once(queues: TaskQueues, name: str) -> None:
    queues.declare(name)
    queues.send(name, b"one")
    queues.give_back(got(queues, name))
    assert got(queues, name).attempt == 2


def test_one_that_is_buried_is_a_dead_letter(
    queues: TaskQueues, name: str, frameworks_broker: LocalBroker
) -> None:
    queues.declare(name)
    queues.send(name, b"one")
    queues.bury(got(queues, name))
    assert finished(queues, name)
    (letter,) = frameworks_broker.dead_letters(name)
    assert letter.message.body == b"one"


def test_one_that_came_too_often_is_a_dead_letter(
    queues: TaskQueues, name: str, frameworks_broker: LocalBroker
) -> None:
    queues.declare(name, deliveries=3)
    queues.send(name, b"poison")
    for attempt in (1, 2, 3):
        task = got(queues, name)
        assert task.attempt == attempt
        queues.give_back(task)
    assert queues.get(name, SOON_S) is None
    (letter,) = frameworks_broker.dead_letters(name)
    assert letter.message.body == b"poison"


def test_what_nobody_renews_comes_again(
    queues: TaskQueues, name: str, frameworks_broker: LocalBroker
) -> None:
    gone = TaskQueues(frameworks_broker.endpoint)
    gone.declare(name)
    gone.send(name, b"one")
    lost = got(gone, name)
    frameworks_broker.advance("61s")
    again = got(queues, name)
    assert (again.body, again.attempt) == (b"one", 2)
    gone.finish(lost)  # Too late: that is of the delivery before.
    gone.close()
    assert queues.size(name) == 1
    queues.finish(again)
    assert finished(queues, name)


def test_what_is_finished_given_back_or_buried_amid_a_renewal_is_so(
    queues: TaskQueues, name: str, frameworks_broker: LocalBroker
) -> None:
    queues.declare(name)
    for number in range(60):
        queues.send(name, b"%d" % number)

    def amid_a_renewal(end: Callable[[Task], object]) -> None:
        task = got(queues, name)

        async def begin() -> None:
            asyncio.get_running_loop().create_task(queues._renew_one(task))
            await asyncio.sleep(0)

        queues.run(begin)
        end(task)

    for _ in range(20):
        amid_a_renewal(queues.finish)
        amid_a_renewal(queues.bury)
        amid_a_renewal(lambda task: queues.give_back(task, after_s=3_600))
    end_s, pause = time.monotonic() + LONG_S, threading.Event()
    while queues.size(name) != 20:  # What was given back.
        assert time.monotonic() < end_s, queues.size(name)
        pause.wait(0.01)
    assert len(frameworks_broker.dead_letters(name)) == 20


def test_what_is_at_work_is_renewed(queues: TaskQueues, name: str) -> None:
    queues.renew_s = 0.01
    queues.declare(name)
    queues.send(name, b"one")
    task = got(queues, name)
    first, end_s, pause = task.handle, time.monotonic() + LONG_S, threading.Event()
    while task.handle == first:
        assert time.monotonic() < end_s
        pause.wait(0.01)
    queues.finish(task)
    assert finished(queues, name)


def test_a_close_gives_back_what_was_not_finished(
    queues: TaskQueues, name: str, frameworks_broker: LocalBroker
) -> None:
    first = TaskQueues(frameworks_broker.endpoint)
    first.declare(name)
    for body in (b"one", b"two"):
        first.send(name, body)
    first.finish(got(first, name))
    got(first, name)
    first.close()
    left = got(queues, name)
    assert (left.body, left.attempt, queues.size(name)) == (b"two", 2, 1)
    with pytest.raises(ClientClosed):
        first.size(name)


def test_a_consumer_takes_what_it_has_room_for(queues: TaskQueues, name: str) -> None:
    queues.declare(name)
    for number in range(10):
        queues.send(name, b"%d" % number)
    taken: list[Task] = []
    come = threading.Semaphore(0)

    def deliver(task: Task) -> None:
        taken.append(task)
        come.release()

    def failed(error: PocketMQError) -> None:
        pytest.fail(error.message)

    consumer = queues.consume(name, lambda: 4 - len(taken), deliver, failed)
    for _ in range(4):
        assert come.acquire(timeout=LONG_S)
    assert queues.get(name, LONG_S) is not None  # The rest is others'.
    assert len(taken) == 4
    for task in taken:
        queues.finish(task)
    taken.clear()
    consumer.wake()
    for _ in range(4):
        assert come.acquire(timeout=LONG_S)
    consumer.close()
    assert len(taken) == 4


def test_the_highest_priority_comes_first(queues: TaskQueues, name: str) -> None:
    queues.declare(name, levels=10)
    for priority in (3, 9, 0, 3, 400):
        queues.send(name, b"%d" % priority, priority=priority)
    bodies = [got(queues, name).body for _ in range(5)]
    assert bodies == [b"9", b"400", b"3", b"3", b"0"]


def test_a_delayed_task_comes_when_it_is_due(
    queues: TaskQueues, name: str, frameworks_broker: LocalBroker
) -> None:
    queues.declare(name)
    queues.send(name, b"later", at_ms=frameworks_broker.now() + 7_200_000)
    assert queues.delayed() == 1
    assert queues.get(name, SOON_S) is None
    frameworks_broker.advance("2h")
    assert got(queues, name).body == b"later"
    assert queues.delayed() == 0


def test_a_queue_to_which_a_task_comes_back_meanwhile_is_not_idle(
    queues: TaskQueues, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.declare(name)
    assert queues.is_idle(name)
    counted = queues._size

    async def comes_back_once_counted(topic: str) -> int:
        size = await counted(topic)
        await queues._send(name, b"retried", "", None, 0)
        return size

    monkeypatch.setattr(queues, "_size", comes_back_once_counted)

    assert not queues.is_idle(name)


def test_a_delayed_task_of_a_queue_with_levels_comes_beside_them(
    queues: TaskQueues, name: str, frameworks_broker: LocalBroker
) -> None:
    queues.declare(name, levels=3)
    queues.send(name, b"later", at_ms=frameworks_broker.now() + 60_000, priority=2)
    queues.send(name, b"now", priority=1)
    frameworks_broker.advance("1m")
    assert queues.size(name) == 2
    taken: list[bytes] = []
    come = threading.Semaphore(0)

    def deliver(task: Task) -> None:
        taken.append(task.body)
        come.release()

    consumer = queues.consume(name, lambda: 5, deliver, lambda error: pytest.fail(error.message))
    for _ in range(2):
        assert come.acquire(timeout=LONG_S)
    consumer.close()
    assert sorted(taken) == [b"later", b"now"]


def test_a_purge_finishes_what_waits_and_what_is_lent(queues: TaskQueues, name: str) -> None:
    queues.declare(name)
    for _ in range(3):
        queues.send(name, b"x")
    got(queues, name)
    assert queues.purge(name) == 3
    assert queues.size(name) == 0
    assert queues.get(name, SOON_S) is None


def test_a_purge_needs_no_worker(queues: TaskQueues, name: str) -> None:
    queues.declare(name)
    queues.send(name, b"x")
    assert queues.purge(name) == 1
    assert queues.size(name) == 0


def test_a_follower_gets_what_is_sent_from_then_on(queues: TaskQueues, name: str) -> None:
    queues.declare(name)
    queues.send(name, b"before")
    heard: list[bytes] = []
    come = threading.Event()

    def deliver(body: bytes) -> None:
        heard.append(body)
        come.set()

    follower = queues.follow(name, deliver, lambda error: pytest.fail(error.message))
    queues.send(name, b"after")
    assert come.wait(LONG_S)
    follower.close()
    assert heard == [b"after"]


def test_a_message_that_a_follower_cannot_take_costs_it_that_one_alone(
    queues: TaskQueues, name: str
) -> None:
    queues.declare(name)
    heard: list[bytes] = []
    come = threading.Semaphore(0)

    def deliver(body: bytes) -> None:
        heard.append(body)
        come.release()
        if body == b"bad":
            raise ValueError(body)

    follower = queues.follow(name, deliver, lambda error: pytest.fail(error.message))
    for body in (b"1", b"bad", b"2"):
        queues.send(name, body)
    for _ in range(3):
        assert come.acquire(timeout=LONG_S)
    follower.close()
    assert heard == [b"1", b"bad", b"2"]


def test_one_that_could_not_be_buried_is_not_renewed_and_can_be_buried_again(
    queues: TaskQueues, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues.declare(name)
    queues.send(name, b"one")
    task = got(queues, name)

    async def away(*_: object) -> None:
        raise ConnectionLost("the broker is away")

    with monkeypatch.context() as patch:
        patch.setattr(queues, "_ask", away)
        with pytest.raises(ConnectionLost):
            queues.bury(task)
    handle = task.handle
    queues.run(partial(queues._renew_one, task))
    assert task.handle == handle
    queues.bury(task)
    assert finished(queues, name)


def test_what_is_sent_to_a_queue_that_is_not_there_is_refused(
    queues: TaskQueues, name: str
) -> None:
    with pytest.raises(TopicNotFound, match="declare it"):
        queues.send(name, b"x")
    queues.declare(name)
    queues.send(name, b"x")
    queues.delete(name)
    assert not queues.exists(name)
    with pytest.raises(TopicNotFound):
        queues.send(name, b"x")


def test_a_broker_that_is_not_there_is_told() -> None:
    queues = TaskQueues("127.0.0.1:1")
    with pytest.raises(ConnectionLost, match=r"cannot reach 127\.0\.0\.1:1"):
        queues.check()
    queues.close()


@pytest.mark.processes
def test_a_process_that_was_forked_has_a_loop_of_its_own(
    queues: TaskQueues, name: str, frameworks_broker: LocalBroker
) -> None:
    queues.declare(name)

    def work() -> None:
        with pytest.raises(ClientClosed, match="before this process was forked"):
            queues.check()
        queues.close()  # Does nothing here.
        mine = TaskQueues(frameworks_broker.endpoint)
        mine.send(name, b"from the child")
        mine.close()

    assert in_a_fork(work) == 0
    assert got(queues, name).body == b"from the child"
