"""Running views of `pocketmq inspect` on stores, for the tests beside this file."""

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from pocketmq.store.os_disk import OsDisk
from pocketmq.store.view import StoreView
from pocketmq.tools.inspect.command import inspect

from ...recorded import recorded_store


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes with this process."""
    return tempfile.TemporaryDirectory(prefix="pocketmq-inspected-")


@functools.cache
def unchanged(name: str) -> Path:
    """Return the recorded store NAME, one copy for all tests: they must not write into it."""
    return recorded_store(name, Path(_folder().name) / name)


def view(store: Path, *words: str) -> Result:
    """Run `inspect STORE WORDS…`; an error that is no PocketMQError is raised."""
    result = CliRunner().invoke(inspect, [str(store), *words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def lines(store: Path, *words: str) -> list[dict[str, Any]]:
    """Return the objects that a view prints with --jsonl."""
    return [json.loads(line) for line in view(store, *words, "--jsonl").stdout.splitlines()]


def document(store: Path, *words: str) -> dict[str, Any]:
    """Return the document that a view prints with --json."""
    found: dict[str, Any] = json.loads(view(store, *words, "--json").stdout)
    return found


def files_of(store: Path) -> StoreView:
    """Return the files of STORE."""
    return StoreView(OsDisk(), str(store))
