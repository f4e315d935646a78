"""A broker of the test kit for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pocketmq.tools.testing import LocalBroker
from pocketmq.tools.testing.servers import BrokerOptions

from ... import served


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    options = BrokerOptions(broker={"grpc": served.chosen()})
    with LocalBroker(tmp_path_factory.mktemp("kit"), options) as running:
        yield running
