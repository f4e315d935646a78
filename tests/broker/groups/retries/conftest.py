"""A broker for tests of retries and of dead letters, with the group `g`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .retrying import Retrying


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Retrying]:
    made = Retrying(tmp_path)
    made.group()
    yield made
    made.close()
