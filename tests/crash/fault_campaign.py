"""Let every operation on files fail once, each way it can, amid a script of all that a broker does.

    python -m tests.crash.fault_campaign [--every 1] [--fault EIO …]

Each time the script (fault_script.py) runs on a new store; which operation failed is printed with what was wrong, and
`--fault EIO --first 55 --last 55` does that one again.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from .failing_disk import Fault
from .fault_script import Outcome, play


def outcomes(faults: Sequence[Fault], first: int, last: int, every: int) -> Iterator[Outcome]:
    """Yield what came of every EVERY-th operation from FIRST to LAST of each of FAULTS."""
    for fault in faults:
        number = first
        while number <= last:
            outcome = _played(fault, number)
            if not outcome.hit:
                break
            yield outcome
            number += every


def _played(fault: Fault, number: int) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="pocketmq-faults-") as folder:
        return play(Path(folder) / "store", fault, number)


def _say(outcome: Outcome, say: Callable[[str], None]) -> None:
    say("\n    ".join([outcome.hit, *outcome.complaints]))


@click.command()
@click.option("--fault", "names", multiple=True, type=click.Choice([fault.name for fault in Fault]))
@click.option("--first", default=1, help="The operation to begin with.")
@click.option("--last", default=1_000_000, help="The last operation.")
@click.option("--every", default=1, help="Try every n-th operation only.")
def main(names: Sequence[str], first: int, last: int, every: int) -> None:
    """Let operations fail, and print what is wrong afterwards."""
    faults = [Fault[name] for name in names] or list(Fault)
    tried = wrong = 0
    for outcome in outcomes(faults, first, last, every):
        tried += 1
        if outcome.complaints:
            wrong += 1
            _say(outcome, click.echo)
        elif tried % 50 == 0:
            click.echo(f"{tried} faults tried, {wrong} with complaints")
    click.echo(f"{tried} faults tried, {wrong} with complaints")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
