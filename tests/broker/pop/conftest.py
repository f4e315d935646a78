"""Fixtures of pops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .popping import Popping


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Popping]:
    """Pops over a store of one topic with one queue, checked at the end."""
    made = Popping(tmp_path)
    yield made
    made.check()
    await made.stop()
