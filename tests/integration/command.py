"""The command `pocketmq` as a user runs it: every call a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

COMMAND = [sys.executable, "-m", "pocketmq.tools.cli"]


@dataclass(frozen=True)
class Done:
    """What a call printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def pocketmq(*arguments: str, nameserver: str = "", stdin: bytes = b"") -> Done:
    """Run the command with ARGUMENTS."""
    environment = os.environ | ({"POCKETMQ_NAMESERVER": nameserver} if nameserver else {})
    done = subprocess.run(
        [*COMMAND, *arguments],
        env=environment,
        input=stdin,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


Call = Callable[..., Done]
