"""`pocketmq demo`: a minute that shows what PocketMQ does, on real data, each claim checked.

Servers are real processes over a store in a temporary folder; what runs here is an application. The steps stand in
steps.py; here is what they look like.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
from rich.console import Console

from ...proto.errors import PocketMQError
from .board import Board
from .steps import Demo


@click.command()
@click.option(
    "--messages",
    type=click.IntRange(1_000),
    help="Use the first so many flights only.  [default: all 336,776]",
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
    board = Board(Console())
    with tempfile.TemporaryDirectory(prefix="pocketmq-demo-") as folder:
        try:
            Demo(board, store or Path(folder, "store"), messages).run()
        except AssertionError as error:
            raise PocketMQError(f"the demo failed: {error}") from error
        finally:
            board.summary()
    if board.failures:
        ctx.exit(1)
