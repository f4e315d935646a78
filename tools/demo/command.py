"""`pocketmq demo`: a minute that shows what PocketMQ does, on real data, each claim checked."""

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
    help="Keep the store in this folder, which must not exist, and that of the last part beside it (NAME-later)."
    "  [default: temporary ones, removed]",
)
@click.pass_context
def demo(ctx: click.Context, messages: int | None, store: Path | None) -> None:
    """Send every flight of New York in 2013, read them back, look some up, and kill the broker meanwhile.

    Ends with 1 if anything is not as it should be.
    """
    if store is not None and store.exists():
        raise click.UsageError(f"--store {store} exists: name a new folder.")
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
