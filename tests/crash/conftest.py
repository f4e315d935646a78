"""Which power cuts are tried by `make test`: one of three seeds, and by `make test-long` the others."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

_HERE: Final = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # Before what is not asked for is left out.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == _HERE and item.path.stem.endswith("power_loss"):
            seed = item.callspec.params.get("seed") if isinstance(item, pytest.Function) else None
            if isinstance(seed, int) and seed % 3:
                item.add_marker(pytest.mark.long)
