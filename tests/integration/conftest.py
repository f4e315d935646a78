"""A `pocketmq serve` on free ports for the tests of one module, and the command pointed at it."""

from collections.abc import Iterator
from typing import Any

import pytest

from ..served import ServerProcess
from .browser import chromium_browser
from .command import Shell


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("command") / "store") as running:
        yield running


@pytest.fixture
def call(server: ServerProcess) -> Shell:
    return Shell(server.nameserver)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with chromium_browser() as browser:
        yield browser
