"""Ctrl-C at any moment of the command's beginning ends it quietly, with the exit code of an interrupt."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes

INTERRUPTED = 130

#: Runs the command, which is interrupted when it imports the module that is named first.
PROGRAM = """
import os, signal, sys

module, sys.argv[1:] = sys.argv[1], ["topic", "list"]

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
signal.signal(signal.SIGINT, {handler})
from pocketmq.__main__ import main
main()
"""


def interrupted(module: str, handler: str = "signal.default_int_handler") -> tuple[int, str, str]:
    """Return exit code and output of the command, interrupted when it imports MODULE."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{handler}", handler), module],
        env={"POCKETMQ_NAMESERVER": "127.0.0.1:1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "module",
    ["pocketmq.tools.cli", "click", "pocketmq.tools.topic", "pocketmq.client.routes"],
)
def test_an_interrupt_while_it_imports_ends_it_without_a_word(module: str) -> None:
    assert interrupted(module) == (INTERRUPTED, "", "")


def test_who_ignores_interrupts_goes_on_to() -> None:
    code, _, complaint = interrupted("click", "signal.SIG_IGN")

    assert code == 4
    assert complaint.startswith("pocketmq: ")
