"""Stores that a real Apache RocketMQ 5.5.0 broker wrote, and what its own classes say about each.

The archives stand in tests/fixtures (see its README). Both are unpacked once a process into a
temporary folder; every test gets its own sparse copy, so that a test may write into what it got.
"""

import atexit
import functools
import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.mark import ParameterSet

FIXTURES: Final = Path(__file__).parent / "fixtures"
COPY_BYTES: Final = 1 << 20
#: Stores of thousands of records each of which has a smaller one, or another of its kind of damage, beside it.
LARGE: Final = frozenset(
    {
        "cleaned", "rolled", "unclean-late", "damaged-broken-json", "damaged-empty-last-log-file", "damaged-flip-last",
        "damaged-flip-middle-clean", "damaged-flip-recent-clean", "damaged-garbage-index", "damaged-long-queue",
        "damaged-missing-last-queue-file", "damaged-missing-queue-file", "damaged-no-queues", "damaged-short-index",
        "damaged-torn-tail", "damaged-torn-tail-clean", "damaged-zeroed-tail",
    }
)  # fmt: skip


@functools.cache
def unpacked(archive: str) -> Path:
    """Return the temporary folder that ARCHIVE was unpacked into; it is removed at exit."""
    folder = Path(tempfile.mkdtemp(prefix="pocketmq-recorded-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with tarfile.open(FIXTURES / f"{archive}.tar.xz") as tar:
        tar.extractall(folder, filter="tar")
    return folder


def recorded_names() -> list[str]:
    """Return the names of all recorded stores, sound ones first."""
    names = sorted(path.stem for path in unpacked("expected").iterdir())
    return sorted(names, key=lambda name: name.startswith("damaged-"))


def by_size(names: Iterable[str]) -> list[str | ParameterSet]:
    """Return NAMES to parametrize with: a test of a large store is `long`."""
    return [pytest.param(name, marks=pytest.mark.long) if name in LARGE else name for name in names]


def expected(name: str) -> dict[str, Any]:
    """Return Apache's own description of the store NAME, as a new value."""
    document: dict[str, Any] = json.loads((unpacked("expected") / f"{name}.json").read_bytes())
    return document


def settings(name: str) -> dict[str, str]:
    """Return the broker settings that the store NAME must be opened with, in Apache's names."""
    return dict(_said(name)["settings"])


def is_accepted(name: str) -> bool:
    """Tell whether Apache's broker starts on the store NAME."""
    return bool(_said(name)["accepted"])


def was_killed(name: str) -> bool:
    """Tell whether the broker that wrote the store NAME was killed."""
    return bool(_said(name)["abortPresent"])


@functools.cache
def _said(name: str) -> dict[str, Any]:
    """Return what is asked most of the description, which is long and dear to parse."""
    document = expected(name)
    return {key: document[key] for key in ("settings", "accepted", "abortPresent")}


def recorded_store(name: str, target: Path) -> Path:
    """Copy the store NAME to TARGET, which must not exist, and return TARGET; holes stay holes."""
    copy_sparsely(unpacked("stores") / name, target)
    return target


def copy_sparsely(source: Path, target: Path) -> None:
    """Copy the folder SOURCE to TARGET with times and permissions, without filling its holes."""
    shutil.copytree(source, target, copy_function=_copy_file)


def _copy_file(source: str, target: str) -> None:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        size = os.fstat(reader.fileno()).st_size
        writer.truncate(size)
        at = 0
        while at < size:
            try:
                at = os.lseek(reader.fileno(), at, os.SEEK_DATA)
            except OSError:  # ENXIO: only a hole is left
                break
            end = os.lseek(reader.fileno(), at, os.SEEK_HOLE)
            while at < end:
                data = os.pread(reader.fileno(), min(COPY_BYTES, end - at), at)
                os.pwrite(writer.fileno(), data, at)
                at += len(data)
    shutil.copystat(source, target)
