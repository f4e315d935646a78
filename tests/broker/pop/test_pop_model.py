"""Random deeds and restarts, clean and killed, against a plain model of what pop promises (pop_model.py).

A failing case is replayed by its seed. POCKETMQ_SEEDS=n tries n seeds of each kind, from POCKETMQ_SEED on.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from .pop_model import Driver

FIRST = int(os.environ.get("POCKETMQ_SEED", "1"))
COUNT = int(os.environ.get("POCKETMQ_SEEDS", "5"))
STEPS = 120


@pytest.mark.parametrize("ordered", [False, True], ids=["no order", "in order"])
@pytest.mark.parametrize("seed", range(FIRST, FIRST + COUNT))
async def test_pop_keeps_its_promises(
    seed: int, ordered: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    driver = Driver(tmp_path, seed, ordered=ordered)

    for _ in range(STEPS):
        await driver.step()

    await driver.finish()
