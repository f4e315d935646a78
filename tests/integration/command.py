"""The command `pocketmq` as a user runs it: by `Shell` in this process, by `pocketmq` in one of its own.

A new process takes half a second to import what it needs; in this one that is done once.
"""

import json
import logging
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from click.testing import CliRunner

from pocketmq.tools import cli

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


def process(command: list[str], *, nameserver: str = "", stdin: bytes = b"") -> Done:
    """Run COMMAND to its end, with NAMESERVER in its environment."""
    environment = os.environ | ({"POCKETMQ_NAMESERVER": nameserver} if nameserver else {})
    done = subprocess.run(
        command, env=environment, input=stdin, capture_output=True, timeout=180, check=False
    )
    return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


def pocketmq(*arguments: str, nameserver: str = "", stdin: bytes = b"") -> Done:
    """Run the command with ARGUMENTS in a process of its own."""
    return process([*COMMAND, *arguments], nameserver=nameserver, stdin=stdin)


class Shell:
    """The command, run in this process and pointed at NAMESERVER by the environment."""

    def __init__(self, nameserver: str) -> None:
        self.nameserver = nameserver

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Done:
        environment = {"POCKETMQ_NAMESERVER": self.nameserver}
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        try:
            with CliRunner().isolation(input=stdin, env=environment) as (out, err, _both):
                code = cli.run(arguments)
        finally:  # Commands that serve set up the process's logging.
            root.handlers[:] = handlers
            root.setLevel(level)
        return Done(code, out.getvalue().decode(), err.getvalue().decode())

    def done(self, *arguments: str) -> list[dict[str, Any]]:
        """Return what a call that must succeed, without a word on standard error, tells programs."""
        found = self(*arguments, "--json")
        assert (found.code, found.err) == (0, ""), found
        return found.documents

    def consumed(self, topic: str, count: int = 0) -> list[dict[str, Any]]:
        """Return COUNT messages of TOPIC; without, make sure that no more are there."""
        wanted = ("--limit", str(count), "--timeout", "20") if count else ("--timeout", "0.2")
        return self.done("consume", topic, "--group", "readers", *wanted)
