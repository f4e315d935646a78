"""A broker whose time the test moves; leases may be short there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pocketmq.tools.frameworks.task_queues import TaskQueues
from pocketmq.tools.testing.local_broker import LocalBroker
from pocketmq.tools.testing.servers import BrokerOptions


@pytest.fixture(scope="module")
def frameworks_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with LocalBroker(tmp_path_factory.mktemp("frameworks"), BrokerOptions()) as broker:
        yield broker


@pytest.fixture
def queues(frameworks_broker: LocalBroker) -> Iterator[TaskQueues]:
    with_broker = TaskQueues(frameworks_broker.endpoint)
    yield with_broker
    with_broker.close()


@pytest.fixture
def name(frameworks_broker: LocalBroker) -> str:
    """A queue that nobody has used."""
    return frameworks_broker._kit.fresh_name("queue")
