"""`pocketmq demo`: shows PocketMQ with real data in a minute, and checks every result."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from ...proto.errors import PocketMQError
from .. import terminal
from .progress import Board
from .steps import CHECKS, Demo


@click.command()
@click.option(
    "--messages",
    type=click.IntRange(1_000, 1_000_000_000),
    help="Number of flights to use.  [default: all 336,776]",
)
@click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    help="New folder to keep the store in; the store of the last part is in NAME-later."
    "  [default: temporary folders]",
)
@click.pass_context
def demo(ctx: click.Context, messages: int | None, store: Path | None) -> None:
    """Send real data, kill the broker, and check that nothing is lost.

    Sends every flight of New York in 2013, reads them back, looks some up, and kills the broker meanwhile. Takes about
    a minute.

    Exit code 1: a check failed.
    """
    if store is not None and store.exists():
        raise click.UsageError(f"--store {store} exists: give a new folder.")
    board = Board(terminal.console(markup=True), CHECKS)
    stopped = True
    with tempfile.TemporaryDirectory(prefix="pocketmq-demo-") as folder:
        try:
            Demo(board, store or Path(folder, "store"), messages).run()
            stopped = False
        except AssertionError as error:
            raise PocketMQError(f"the demo failed: {error}") from error
        finally:
            board.summary(stopped=stopped)
    if board.failures:
        ctx.exit(1)
