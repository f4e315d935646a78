"""The C core in tests: tests that need it, and the Python code in its place."""

from __future__ import annotations

import os
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pocketmq.proto import speedups


def need_core() -> speedups.Core:
    """Return the C core; skip the test where it is not built. In CI it must be, if it can be and was not turned off."""
    if speedups.core is None:
        must_be = os.environ.get("CI") and not os.environ.get(speedups.VARIABLE) and can_build()
        refuse = pytest.fail if must_be else pytest.skip
        refuse(f"{speedups.why_pure}: `make dev` builds it where a C compiler is")
    return speedups.core


def can_build() -> bool:
    """Are a C compiler and the headers of Python there?"""
    compiler = (sysconfig.get_config_var("CC") or "").split()[:1]
    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return bool(compiler) and shutil.which(compiler[0]) is not None and headers.is_file()


@contextmanager
def pure_code() -> Iterator[None]:
    """Let the Python code run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speedups, "core", None)
        yield
