"""`pocketmq` on a machine that is spoilt while it runs: a slow or full disk, a clock that jumps; or with a broken rule.

    python -m tests.campaigns.spoilt FILE [--rule NAME] VERB …      as `pocketmq VERB …`

FILE is read whenever it has changed: `{"sync_ms":200,"full":true,"clock_ms":3600000}`, see `Spoilt`. What is slow or
full is what the operating system is asked for, below all of PocketMQ. NAME is a mutant of
tests/simulation/replica_mutants.py: with it a campaign has to find something.
"""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from unittest.mock import patch

from pocketmq.proto.clock import SystemClock
from pocketmq.store.os_disk import OsDisk
from pocketmq.tools import cli

from ..simulation.replica_mutants import mutant


class Spoilt(NamedTuple):
    """What is wrong with the machine of a process."""

    #: Each sync takes so much longer.
    sync_ms: int = 0
    #: Nothing can be written.
    full: bool = False
    #: The wall clock is so far ahead.
    clock_ms: int = 0

    def write(self, path: Path) -> None:
        """Have the process of PATH be so from now on."""
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(self._asdict()), encoding="utf-8")
        draft.replace(path)


class _Machine:
    """The operating system, as PATH says that it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = 0
        self._now = Spoilt()

    def now(self) -> Spoilt:
        with suppress(FileNotFoundError):
            changed = os.stat(self._path).st_mtime_ns
            if changed != self._seen:
                self._seen = changed
                self._now = Spoilt(**json.loads(self._path.read_text(encoding="utf-8")))
        return self._now

    def syncing(self, sync: Callable[..., None]) -> Callable[..., None]:
        def slow(*arguments: Any) -> None:
            if delay_ms := self.now().sync_ms:
                threading.Event().wait(delay_ms / 1000)
            sync(*arguments)

        return slow

    def writing(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def full(*arguments: Any, **settings: Any) -> Any:
            if self.now().full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(*arguments, **settings)

        return full

    def opening(self, opened: Callable[..., Any]) -> Callable[..., Any]:
        def full(disk: OsDisk, path: str, mode: str) -> Any:
            if "w" in mode and self.now().full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            return opened(disk, path, mode)

        return full

    def unix_ms(self, clock: SystemClock) -> int:
        return time.time_ns() // 1_000_000 + self.now().clock_ms


def main() -> NoReturn:
    """Run the command on a spoilt machine."""
    path, *arguments = sys.argv[1:]
    machine = _Machine(Path(path))
    with ExitStack() as spoilt:
        if arguments[0] == "--rule":
            spoilt.enter_context(mutant(arguments[1]))
            arguments = arguments[2:]
        for name in ("fsync", "fdatasync"):
            spoilt.enter_context(patch.object(os, name, machine.syncing(getattr(os, name))))
        for name in ("pwrite", "posix_fallocate"):
            spoilt.enter_context(patch.object(os, name, machine.writing(getattr(os, name))))
        spoilt.enter_context(patch.object(OsDisk, "_opened", machine.opening(OsDisk._opened)))
        spoilt.enter_context(
            patch.object(SystemClock, "unix_ms", lambda clock: machine.unix_ms(clock))
        )
        sys.argv[1:] = arguments
        cli.main()


if __name__ == "__main__":
    main()
