"""dramatiq's own tests of brokers pass on PocketMQ, but for those that are named with their reason."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

from ...repository.source_tree import ROOT

pytest.importorskip("dramatiq")
pytest.importorskip("pika")

from .dramatiq_suite import LEFT_OUT

pytestmark = [pytest.mark.processes, pytest.mark.long]

FILES = ("test_redis.py", "test_rabbitmq.py")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Its tests of brokers in a package, with our fixtures."""
    package = f"dramatiq=={version('dramatiq')}"
    fetch = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-binary",
        "dramatiq",
    ]
    done = subprocess.run(
        [*fetch, package], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    if done.returncode:
        if os.environ.get("CI"):
            pytest.fail(done.stderr)
        pytest.skip("the package index does not answer")
    (source,) = tmp_path.glob("dramatiq-*.tar.gz")
    folder = tmp_path / "their_tests"
    folder.mkdir()
    with tarfile.open(source) as packed:
        for name in FILES:
            member = packed.extractfile(f"{source.name.removesuffix('.tar.gz')}/tests/{name}")
            assert member is not None
            (folder / name).write_bytes(member.read())
    for name in ("conftest.py", "common.py"):
        (folder / name).write_text("from tests.tools.frameworks.dramatiq_suite import *\n")
    (folder / "__init__.py").touch()
    return folder


def test_its_own_tests_of_brokers_pass(suite: Path) -> None:
    names = [
        (file, name)
        for file in FILES
        for name in re.findall(r"^def (test_\w+)\(", (suite / file).read_text(), re.MULTILINE)
    ]
    assert {name for _, name in names} >= LEFT_OUT.keys()
    chosen = [f"{suite / file}::{name}" for file, name in names if name not in LEFT_OUT]
    assert len(chosen) >= 19
    quiet = ("-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(suite.parent))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *chosen],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert f"{len(chosen)} passed" in done.stdout
