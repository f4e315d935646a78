"""`pocketmq`, and `python -m pocketmq` where the script is not on the path: the command, interrupted without a word.

Its first imports take a tenth of a second, and so may its end: an interrupt then ends the process at once, with the
exit code that the command itself has for one.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

_INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command."""
    usual = signal.getsignal(signal.SIGINT)
    quiet = _end if usual is signal.default_int_handler else usual  # Who ignores it goes on to.
    signal.signal(signal.SIGINT, quiet)
    from .tools import cli

    try:
        signal.signal(signal.SIGINT, usual)
        cli.main()
    finally:
        signal.signal(signal.SIGINT, quiet)


def _end(number: int, frame: object) -> NoReturn:
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
