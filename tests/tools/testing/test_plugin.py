"""The pytest plugin as its users run it, in a pytest of its own; the examples of its pages are its tests."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from pocketmq.tools.testing import plugin

from ... import served

DOCS = Path(__file__).parents[3] / "docs"
PAGES = ("test-with-pytest.md", "inject-faults.md", "record-and-replay.md")
SETTINGS = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
addopts = --strict-markers
filterwarnings = error
"""
#: The test suite's carrier, which the examples know nothing of.
CARRIER = """
import pytest

def pytest_collection_modifyitems(items):
    import pocketmq.tools.testing.servers as kit
    kit._BROKER = {{**kit._BROKER, "grpc": {grpc!r}}}
"""


def run(folder: Path, **files: str) -> tuple[int, str]:
    """Run pytest in FOLDER on FILES; return its exit code and what it said."""
    (folder / "conftest.py").write_text(CARRIER.format(grpc=served.chosen()))
    for name, text in files.items():
        suffix = ".ini" if name == "pytest" else ".py"
        (folder / f"{name}{suffix}").write_text(text)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "pocketmq.tools.testing",
            "-p",
            "no:cacheprovider",
            "--color=no",
            "-v",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        timeout=600,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.processes
@pytest.mark.timeout(660)
def test_every_example_of_the_guide_passes_and_what_is_wrong_is_told(tmp_path: Path) -> None:
    text = "".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    files = {f"test_{number}": block for number, block in enumerate(blocks)}
    wrong = """
import pytest

@pytest.mark.pocketmq(clok="virtual")
def test_wrong_option(pocketmq_broker):
    pass
"""

    code, said = run(tmp_path, pytest=SETTINGS, test_wrong=wrong, **files)

    assert len(blocks) >= 5
    assert code == 1, said
    assert said.count("PASSED") == sum(block.count("def test_") for block in blocks), said
    assert (said.count("FAILED"), said.count("ERROR test_wrong.py")) == (0, 1), said
    assert "no option 'clok'; did you mean 'clock'?" in said, said


def test_modules_are_found_as_they_are_installed_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    plugin.pytest_load_initial_conftests()
    plugin.pytest_load_initial_conftests()

    assert sys.meta_path.count(plugin.AsInstalled) == 1
    found = importlib.util.find_spec("pocketmq.tools.record")
    assert found is not None
    assert type(found.loader) is SourceFileLoader
    assert plugin.AsInstalled.find_spec("json.tool") is None
    plugin.pytest_unconfigure()
    assert plugin.AsInstalled not in sys.meta_path


@pytest.mark.processes
def test_the_plugin_imports_neither_numpy_nor_the_broker() -> None:
    code = (
        "import sys, pocketmq.tools.testing, pocketmq.tools.testing.plugin\n"
        "print([name for name in sys.modules if name in ('numpy', 'asyncio', 'pocketmq.broker', 'pocketmq.client')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
