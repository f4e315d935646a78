"""Let every operation on files fail once, each way it can, in a script of all that a broker does.

    python -m tests.crash.fault_campaign [--every 1] [--fault EIO …] [--flush sync]
    python -m tests.crash.fault_campaign --pairs 500 --seed 7 [--flush sync]

Each time the script (fault_script.py) runs on a new store; which operation failed is printed with what was wrong, and
`--fault EIO --first 55 --last 55` does that one again. With --pairs two operations fail, which SEED chooses.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, TypeAlias

import click

from .failing_disk import Fault
from .fault_script import Outcome, play

Flush: TypeAlias = Literal["async", "sync"]
#: The maximum distance of two operations that fail.
_APART_MAX: Final = 40


def outcomes(
    faults: Sequence[Fault], first: int, last: int, every: int, flush: Flush
) -> Iterator[Outcome]:
    """Yield what came of every EVERY-th operation from FIRST to LAST of each of FAULTS."""
    for fault in faults:
        number = first
        while number <= last:
            outcome = _played(fault, number, 0, flush)
            if not outcome.hit:
                break
            yield outcome
            number += every


def paired_outcomes(
    faults: Sequence[Fault], pairs: int, seed: int, flush: Flush
) -> Iterator[Outcome]:
    """Yield what came of PAIRS operations that failed together."""
    rng = random.Random(seed)
    counts = {fault: _played(fault, 0, 0, flush).count for fault in faults}
    for _ in range(pairs):
        fault = rng.choice(faults)
        number = rng.randint(1, counts[fault])
        yield _played(fault, number, number + rng.randint(1, _APART_MAX), flush)


def _played(fault: Fault, number: int, also: int, flush: Flush) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="pocketmq-faults-") as folder:
        return play(Path(folder) / "store", fault, number, also=also, flush=flush)


def _say(outcome: Outcome, say: Callable[[str], None]) -> None:
    say("\n    ".join([outcome.hit, *outcome.complaints]))


@click.command()
@click.option("--fault", "names", multiple=True, type=click.Choice([fault.name for fault in Fault]))
@click.option("--first", default=1, help="The operation to begin with.")
@click.option("--last", default=1_000_000, help="The last operation.")
@click.option("--every", default=1, help="Try every n-th operation only.")
@click.option("--flush", type=click.Choice(("async", "sync")), default="async")
@click.option("--pairs", default=0, help="Let two operations fail, so many times.")
@click.option("--seed", default=1, help="Of the pairs.")
def main(
    names: Sequence[str], first: int, last: int, every: int, flush: Flush, pairs: int, seed: int
) -> None:
    """Let operations fail, and print what is wrong afterwards."""
    faults = [Fault[name] for name in names] or list(Fault)
    tried = wrong = 0
    found = outcomes(faults, first, last, every, flush)
    if pairs:
        found = paired_outcomes(faults, pairs, seed, flush)
    for outcome in found:
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
