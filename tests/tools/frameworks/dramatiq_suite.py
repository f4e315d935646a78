"""dramatiq's own tests of brokers, run on PocketMQ: what their files take from `common` and from fixtures.

Its source package has the tests without these two. They are written against Redis and RabbitMQ by name: here their
fixtures are our broker, a new one for each test. `LEFT_OUT` says of each that is not run why.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import dramatiq
import pytest

from pocketmq.tools.frameworks.dramatiq_broker import PocketmqBroker
from pocketmq.tools.testing.local_broker import LocalBroker
from pocketmq.tools.testing.servers import BrokerOptions

_KEYS: Final = "looks into Redis' own keys"
_THEIRS: Final = "about the other broker's own connection"
#: Tests that are not run, and why.
LEFT_OUT: Final = {
    "test_redis_unacked_messages_can_be_requeued": _KEYS,
    "test_redis_messages_can_be_dead_lettered": _KEYS,
    "test_redis_dead_lettered_messages_are_cleaned_up": _KEYS,
    "test_redis_messages_belonging_to_missing_actors_are_rejected": _KEYS,
    "test_redis_requeues_unhandled_messages_on_shutdown": _KEYS,
    "test_redis_requeues_unhandled_delay_messages_on_shutdown": _KEYS,
    "test_redis_join_race_condition": _KEYS,
    "test_redis_broker_can_connect_via_url": _THEIRS,
    "test_redis_broker_can_connect_via_client": _THEIRS,
    "test_redis_consumer_ack_can_retry_on_connection_error": _THEIRS,
    "test_redis_consumer_nack_can_retry_on_connection_error": _THEIRS,
    "test_redis_consumer_nack_does_not_raise_on_missing_id": _THEIRS,
    "test_rabbitmq_broker_can_be_passed_a_semicolon_separated_list_of_uris": _THEIRS,
    "test_rabbitmq_broker_can_be_passed_a_list_of_uri_for_failover": _THEIRS,
    "test_rabbitmq_broker_raises_an_error_if_given_invalid_parameter_combinations": _THEIRS,
    "test_rabbitmq_broker_can_be_passed_a_list_of_parameters_for_failover": _THEIRS,
    "test_rabbitmq_broker_connections_are_lazy": _THEIRS,
    "test_rabbitmq_broker_stops_retrying_declaring_queues_when_max_attempts_reached": _THEIRS,
    "test_rabbitmq_broker_reconnects_after_enqueue_failure": _THEIRS,
    "test_rabbitmq_workers_handle_rabbit_failures_gracefully": _THEIRS,
    "test_rabbitmq_connections_can_be_deleted_multiple_times": _THEIRS,
    "test_rabbitmq_channels_can_be_deleted_multiple_times": _THEIRS,
    "test_ignore_scary_logs_filter_ignores_logs": _THEIRS,
    "test_rabbitmq_close_only_registers_ignore_filter_once": _THEIRS,
    "test_rabbitmq_broker_retries_declaring_queues_when_connection_related_errors_occur": _THEIRS,
    "test_rabbitmq_broker_consuming_messages_re_declares_queues_when_declared_queue_disappears": _THEIRS,
    "test_rabbitmq_broker_enqueueing_message_re_declares_queues_when_declared_queue_disappears": _THEIRS,
    "test_rabbitmq_broker_can_enqueue_messages_with_priority": "the broker does not look at priorities",
    "test_rabbitmq_consumers_ignore_unknown_messages_in_ack_and_nack": "consumes what nobody declared",
}

# --- what their files import from `common`

RABBITMQ_CREDENTIALS = RABBITMQ_USERNAME = RABBITMQ_PASSWORD = None
#: Each of these tests is left out.
skip_unless_rabbit_mq: Final = pytest.mark.skip


@contextmanager
def worker(*arguments: Any, **options: Any) -> Iterator[dramatiq.Worker]:
    """A worker that runs."""
    running = dramatiq.Worker(*arguments, **options)
    running.start()
    try:
        yield running
    finally:
        running.stop()


# --- fixtures


class CountingBroker(PocketmqBroker):
    """With what tests ask of RabbitMQ's broker: KIT is where it is, with nothing else in it."""

    def __init__(self, kit: LocalBroker) -> None:
        super().__init__(kit.endpoint)
        self._kit = kit

    def join(self, queue_name: str, *, min_successes: int = 1, **options: Any) -> None:
        """Wait until the queue is empty: once seen, it is, since one server counts."""
        super().join(queue_name, **options)

    def get_queue_message_counts(self, queue_name: str) -> tuple[int, int, int]:
        """Return how many messages are in the queue, wait for their time, and are dead."""
        server, name = self.server(), self.topic(queue_name)
        return server.size(name), server.delayed(), len(self._kit.dead_letters(name))


@pytest.fixture
def pocketmq_broker(tmp_path: Path) -> Iterator[CountingBroker]:
    options = BrokerOptions(clock="system", broker={"invisible_min_ms": 1_000})
    with LocalBroker(tmp_path, options) as kit:
        broker = CountingBroker(kit)
        broker.emit_after("process_boot")
        dramatiq.set_broker(broker)
        yield broker
        broker.close()


@pytest.fixture
def pocketmq_worker(pocketmq_broker: CountingBroker) -> Iterator[dramatiq.Worker]:
    with worker(pocketmq_broker, worker_threads=32) as running:
        yield running


@pytest.fixture
def redis_broker(pocketmq_broker: CountingBroker) -> CountingBroker:
    return pocketmq_broker


@pytest.fixture
def rabbitmq_broker(pocketmq_broker: CountingBroker) -> CountingBroker:
    return pocketmq_broker


@pytest.fixture
def redis_worker(pocketmq_worker: dramatiq.Worker) -> dramatiq.Worker:
    return pocketmq_worker


@pytest.fixture
def rabbitmq_worker(pocketmq_worker: dramatiq.Worker) -> dramatiq.Worker:
    return pocketmq_worker


@pytest.fixture
def info_logging() -> None:
    logging.getLogger().setLevel(logging.INFO)
