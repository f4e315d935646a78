"""Fixtures of the faces of `apache.rocketmq.v2`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .consuming import Consuming


@pytest.fixture
async def consuming(tmp_path: Path) -> AsyncIterator[Consuming]:
    """Pops and their face, checked at the end."""
    made = Consuming(tmp_path)
    yield made
    made.check()
    await made.stop()
