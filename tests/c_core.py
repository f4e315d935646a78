"""The C core in tests: tests that need it, and the Python code in its place."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from pocketmq.proto import speedups


def need_core() -> speedups.Core:
    """Return the C core; skip the test where it is not built. In CI it must be, unless the pure code was asked for."""
    if speedups.core is None:
        is_pure = bool(os.environ.get(speedups.VARIABLE))
        refuse = pytest.fail if os.environ.get("CI") and not is_pure else pytest.skip
        refuse(f"{speedups.why_pure}: `make dev` builds it where a C compiler is")
    return speedups.core


@contextmanager
def pure_code() -> Iterator[None]:
    """Let the Python code run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speedups, "core", None)
        yield
