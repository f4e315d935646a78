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
from pathlib import Path
from typing import Any, Final

FIXTURES: Final = Path(__file__).parent / "fixtures"
COPY_BYTES: Final = 1 << 20


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


def expected(name: str) -> dict[str, Any]:
    """Return Apache's own description of the store NAME, as a new value."""
    document: dict[str, Any] = json.loads((unpacked("expected") / f"{name}.json").read_bytes())
    return document


def settings(name: str) -> dict[str, str]:
    """Return the broker settings that the store NAME must be opened with, in Apache's names."""
    found: dict[str, str] = expected(name)["settings"]
    return found


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
