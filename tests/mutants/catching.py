"""Plants bugs in a copy of the sources, and runs the tests that must fail because of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Literal, NamedTuple

from .planted import Planted

ROOT: Final = Path(__file__).parents[2]
#: What a test run may take. A bug that makes tests hang is not caught: the limit of each test is lower.
_TIMEOUT_S: Final = 900
_LEFT_OUT: Final = (".*", "build", "*.egg-info", "node_modules", "site")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Caught(NamedTuple):
    """The result for one bug: the TEST that failed; or that none did, or why nothing is known."""

    verdict: Literal["caught", "survived", "unknown"]
    test: str = ""
    output: str = ""


def planted_text(text: str, bug: Planted) -> str:
    """Return TEXT, the source of the file of BUG, with the bug. Raises ValueError if the place is not unique."""
    if (count := text.count(bug.before)) != 1:
        raise ValueError(f"{bug.name}: {bug.path} has the text {count} times, not once")
    return text.replace(bug.before, bug.after)


class Copy:
    """A copy of the sources in FOLDER, in which tests run."""

    def __init__(self, folder: Path) -> None:
        self._root = folder / "copy"
        shutil.copytree(ROOT, self._root, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        links = self._root / ".dev"
        links.mkdir()
        (links / "pocketmq").symlink_to("..")
        self._changes = 0

    def check(self, bug: Planted) -> Caught:
        """Run the tests of BUG with the bug."""
        path = self._root / bug.path
        text = path.read_text("utf-8")
        self._write(path, planted_text(text, bug))
        try:
            return self.run(bug.tests)
        finally:
            self._write(path, text)

    def run(self, tests: str) -> Caught:
        """Run TESTS until one fails."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "-p",
            "no:cacheprovider",
            "--tb=line",
        ]
        try:
            done = subprocess.run(
                [*command, *tests.split()],
                cwd=self._root,
                env=os.environ | {"PYTHONPATH": str(self._root / ".dev")},
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Caught("unknown", output=f"the tests took longer than {_TIMEOUT_S} s")
        return verdict(done.returncode, done.stdout + done.stderr)

    def _write(self, path: Path, text: str) -> None:
        """Write TEXT with a time of its own: compiled files are compared by time and size."""
        path.write_text(text, "utf-8")
        self._changes += 1
        time_s = path.stat().st_mtime + self._changes
        os.utime(path, (time_s, time_s))


def verdict(code: int, output: str) -> Caught:
    """Return what the exit CODE and the OUTPUT of pytest say about a bug."""
    if code == 0:
        return Caught("survived", output=output)
    failed = _FAILED.search(output)
    if code != 1 or failed is None:
        return Caught("unknown", output=output)
    return Caught("caught", failed[1], output)


def chosen(bugs: Iterable[Planted], words: Iterable[str]) -> list[Planted]:
    """Return those of BUGS that have one of WORDS in their name or path; all without words."""
    wanted = list(words)
    return [
        one for one in bugs if not wanted or any(w in one.name or w in one.path for w in wanted)
    ]
