"""Honest peers for a long time: 100,000 long polls that one consumer cancels, as many calls with PINGs, and the like.

python -m tests.proto.http2.honest_campaign --times 100000
"""

from __future__ import annotations

import argparse
import asyncio

import click

from .honest import HABITS
from .stage import staged


async def run(times: int) -> None:
    """Do all that honest peers do, TIMES each."""
    for name, habit in HABITS.items():
        async with staged() as stage:
            await habit(stage, times)
        click.echo(f"never cut off: a peer that {name}, {times} times")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100_000)
    asyncio.run(run(parser.parse_args().times))
