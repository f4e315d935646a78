"""What workers have to do: rows that are shared, and queues that are with one worker at a time."""

from __future__ import annotations

from collections import deque

from pocketmq.client.pushing.listening import Job
from pocketmq.client.pushing.process_queue import ProcessQueue
from pocketmq.client.pushing.workers import OrderedBacklog, SharedBacklog
from pocketmq.client.queue import Queue

from .test_process_queue import held, run_at


def numbers(job: Job | None) -> list[int]:
    """Take all of the row of JOB."""
    assert job is not None
    return list(job.row)


class TestShared:
    """In any order."""

    def test_all_take_from_the_oldest_row_until_it_is_empty(self) -> None:
        backlog = SharedBacklog()
        _, portions = held(0, 1, 2, 3, portion_messages=2)
        backlog.put(portions)

        one, other = backlog.take(), backlog.take()
        assert one is other
        assert backlog.left == 4
        assert numbers(one) == [0, 1]
        assert numbers(backlog.take()) == [2, 3]
        assert backlog.take() is None
        assert backlog.left == 0

    def test_what_is_handled_again_is_a_job_of_its_own(self) -> None:
        backlog = SharedBacklog()
        _, (portion,) = held(0, 1, 2)
        backlog.put_again(portion, 1)

        job = backlog.take()
        assert job is not None
        assert job.is_retry
        assert numbers(job) == [1]
        assert portion.left == 3

    def test_a_dropped_portion_is_passed_over(self) -> None:
        backlog = SharedBacklog()
        queue, portions = held(0, 1)
        backlog.put(portions)
        backlog.put_again(portions[0], 0)

        queue.drop()

        assert backlog.take() is None


class TestOrdered:
    """A queue with one worker at a time."""

    def test_a_queue_is_taken_by_one(self) -> None:
        backlog = OrderedBacklog()
        _, portions = held(0, 1, 2, 3, portion_messages=2)
        backlog.put(portions)

        job = backlog.take()
        assert backlog.take() is None
        assert backlog.left == 0
        assert numbers(job) == [0, 1]
        assert job is not None
        backlog.release(job)
        assert backlog.left == 2
        assert numbers(backlog.take()) == [2, 3]

    def test_queues_take_turns(self) -> None:
        backlog = OrderedBacklog()
        order: deque[int] = deque()
        for number in range(3):
            queue = ProcessQueue(Queue("orders", "broker-a", number), 0)
            backlog.put(queue.put(run_at(0, 1), 0, 2, 1))

        while job := backlog.take():
            order.append(job.portion.queue.queue.number)
            list(job.row)
            backlog.release(job)

        assert list(order) == [0, 1, 2, 0, 1, 2]

    def test_what_comes_while_a_worker_is_at_it_follows(self) -> None:
        backlog = OrderedBacklog()
        queue = ProcessQueue(Queue("orders", "broker-a", 0), 0)
        backlog.put(queue.put(run_at(0), 0, 1, 512))
        job = backlog.take()
        backlog.put(queue.put(run_at(1), 0, 2, 512))

        assert backlog.take() is None
        assert job is not None
        list(job.row)
        backlog.release(job)
        following = backlog.take()
        assert following is not None
        assert following.portion.offset_at(0) == 1
        list(following.row)
        backlog.release(following)
        assert backlog.take() is None
        backlog.put(queue.put(run_at(2), 0, 3, 512))
        assert backlog.take() is not None

    def test_a_suspended_queue_waits_until_it_is_resumed(self) -> None:
        backlog = OrderedBacklog()
        queue, portions = held(0, 1)
        backlog.put(portions)
        job = backlog.take()
        assert job is not None
        job.suspended = True
        backlog.release(job)

        assert backlog.take() is None
        backlog.resume(queue)
        assert numbers(backlog.take()) == [0, 1]

    def test_a_queue_that_is_forgotten_does_not_come_back(self) -> None:
        backlog = OrderedBacklog()
        queue, portions = held(0, 1)
        backlog.put(portions)
        job = backlog.take()
        assert job is not None

        backlog.forget(queue)
        backlog.release(job)
        backlog.resume(queue)

        assert backlog.take() is None
        assert backlog.left == 0

    def test_a_queue_that_waits_is_forgotten_too(self) -> None:
        backlog = OrderedBacklog()
        queue, portions = held(0, 1)
        backlog.put(portions)

        backlog.forget(queue)

        assert backlog.take() is None
