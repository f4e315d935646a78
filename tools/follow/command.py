"""`pocketmq follow` and `pocketmq promote`: move from a Java broker to PocketMQ with seconds of downtime.

`follow` prints its progress to standard error: on a terminal a line that is rewritten, else one line every ten seconds
and at each change of state. It ends at Ctrl-C or SIGTERM, and with --until-stopped when the Java broker has stopped
cleanly and all of its log is copied.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Final

import click

from ...proto.clock import SystemClock
from ...proto.errors import StoreMismatch
from ...store.config import StoreConfig, apply_apache_settings
from ...store.open_files import allow_many_files
from ...store.os_disk import OsDisk
from ..log_lines import LogConfig, configure_logging
from ..options import OFFSET
from ..stores.locations import check_new_store, is_store
from ..terminal import one_line, own
from .follower import JavaFollower, OtherHistory, set_aside
from .note import FollowNote, read_note
from .promote import promote as promoted

_LINE_S: Final = 10.0
_LOOK_S: Final = 0.25
_LEVELS: Final = ["debug", "info", "warning", "error"]
_store_argument = click.argument("store", type=click.Path(path_type=Path, file_okay=False))


class _Address(click.ParamType[str]):
    name = "HOST:PORT"

    def convert(self, value: str, param: object, ctx: object) -> str:
        host, _, port = value.rpartition(":")
        if not host or len(port) > 5 or not port.isdecimal() or not 0 < int(port) < 65536:
            self.fail(f"{value[:64]!r} is not an address: write HOST:PORT, such as 10.0.0.1:10912")
        return value


_ADDRESS: Final = _Address()


@click.command()
@click.option(
    "--apache",
    "address",
    type=_ADDRESS,
    required=True,
    help="Replication address of the Java master (its haListenPort, usually 10912).",
)
@click.option(
    "--rpc",
    type=_ADDRESS,
    required=True,
    help="Address of the Java master for requests (its listenPort, usually 10911).",
)
@click.option(
    "--set-aside",
    is_flag=True,
    help="If the master has a different log, rename STORE and start with an empty one.",
)
@click.option(
    "--until-stopped",
    is_flag=True,
    help="Stop when the master has stopped cleanly and all of its log is copied.",
)
@click.option(
    "--log-level", type=click.Choice(_LEVELS, case_sensitive=False), default="error", show_default=True,
    help="Lowest level of log lines on standard error.",
)  # fmt: skip
@_store_argument
def follow(
    address: str, rpc: str, set_aside: bool, until_stopped: bool, log_level: str, store: Path
) -> None:
    """Copy the log of a running Java broker into a store.

    Copies log, topics, groups and offsets, and continues as they grow, until Ctrl-C. STORE is a new folder, or one that
    followed this master before. The master is not changed. When both logs have the same end, stop the master, then run
    `pocketmq promote STORE`.

    \b
    Example: pocketmq follow --apache 10.0.0.1:10912 --rpc 10.0.0.1:10911 data/store
    """
    configure_logging(LogConfig(level=log_level))
    asyncio.run(
        _follow(_absolute(store), address, rpc, anew=set_aside, until_stopped=until_stopped)
    )


async def _follow(path: str, address: str, rpc: str, *, anew: bool, until_stopped: bool) -> None:
    disk, clock = OsDisk(), SystemClock()
    allow_many_files()
    if read_note(disk, path) is None:
        check_new_store(disk, path)
        if is_store(disk, path):
            raise StoreMismatch(
                f"{path} is a store that does not follow a Java broker. Name a new folder",
                path=path,
            )
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    while True:
        follower = JavaFollower(path, address, rpc, disk=disk, now_ms=clock.unix_ms)
        running = asyncio.ensure_future(follower.run())
        progress = asyncio.ensure_future(_show(follower, rpc, until_stopped=until_stopped))
        stop = asyncio.ensure_future(stopping.wait())
        await asyncio.wait((running, progress, stop), return_when=asyncio.FIRST_COMPLETED)
        for task in (running, progress, stop):
            task.cancel()
        try:
            with suppress(asyncio.CancelledError):
                await running
        except OtherHistory as error:
            if not anew:
                raise
            name = set_aside(disk, path, clock.unix_ms())
            click.echo(
                f"{error.message.partition(';')[0]}: renamed the store to {name}; continuing with an empty one",
                err=True,
            )
            anew = False  # If it happens again, something else is wrong.
            continue
        if sys.stderr.isatty():
            click.echo(err=True)  # End the line of progress.
        end = f"{path} has the log up to {follower.end:,}"
        if follower.stopped_at is not None:
            end += f", which is all of it. Next: `pocketmq promote {path}`"
        click.echo(end, err=True)
        return


async def _show(follower: JavaFollower, rpc: str, *, until_stopped: bool) -> None:
    """Show the progress: for ever, or with UNTIL_STOPPED until the master has stopped."""
    loop = asyncio.get_running_loop()
    is_terminal = sys.stderr.isatty()
    shown_s, taken, state = -_LINE_S, 0, ""
    while True:
        await asyncio.sleep(_LOOK_S if not is_terminal else 1.0)
        passed_s = loop.time() - shown_s
        now = _state_of(follower)
        if not is_terminal and now == state and passed_s < _LINE_S:
            continue
        rate = max(0, follower.taken_bytes - taken) / max(passed_s, 0.001) / 1e6
        behind = follower.master_end - follower.end
        line = f"{rpc}: {now}; log {follower.end:,}, {behind:,} behind, {rate:.1f} MB/s"
        if is_terminal:
            err = own(sys.stderr)
            err.write(f"\r\x1b[K{one_line(line)[:200]}")
            err.flush()
        else:
            click.echo(line, err=True)
        shown_s, taken, state = loop.time(), follower.taken_bytes, now
        if until_stopped and follower.stopped_at is not None:
            return


def _state_of(follower: JavaFollower) -> str:
    if follower.stopped_at is not None:
        return "the master has stopped cleanly, all of its log is copied"
    if follower.trouble:
        return f"not following: {follower.trouble}"
    return "following"


@click.command()
@click.option(
    "--rpc",
    type=_ADDRESS,
    help="Address of the Java master for requests.  [default: that of `follow`]",
)
@click.option(
    "--java-store",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Store of the stopped or killed Java broker, from which the rest of its log and its tables are copied.",
)
@click.option(
    "--end", type=OFFSET, help="End of the log of the stopped Java broker, as a log offset."
)
@click.option(
    "--accept-loss", is_flag=True, help="Promote even if the master's log has more: that is lost."
)
@_store_argument
def promote(
    rpc: str | None, java_store: Path | None, end: int | None, accept_loss: bool, store: Path
) -> None:
    """Make a store that followed a Java broker ready for PocketMQ.

    The Java broker must have stopped, and STORE must have all of its log. Prints a configuration with the settings of
    the Java broker.

    \b
    Example: pocketmq promote data/store

    Exit code 5: the Java broker still runs, or its log has more.
    """
    path = _absolute(store)
    done = asyncio.run(
        promoted(
            OsDisk(),
            path,
            SystemClock().unix_ms(),
            rpc=rpc,
            java_store=None if java_store is None else _absolute(java_store),
            end=end,
            accept_loss=accept_loss,
        )
    )
    click.echo(f"{path} is ready for a broker; its log ends at {done.end:,}")
    for word in done.words:
        click.echo(f"  {word}")
    click.echo(
        f"Save this configuration, then run `pocketmq serve --config FILE --store {path}`:\n"
    )
    click.echo(_configuration(done.note), nl=False)


def _configuration(note: FollowNote) -> str:
    """Return the configuration of a broker with the settings of the Java broker in NOTE."""
    lines = ["broker:", f"  name: {note.broker}", f"  cluster: {note.cluster}"]
    default = StoreConfig(path=".")
    config = apply_apache_settings(default, note.settings)
    changed = {
        one.name: getattr(config, one.name)
        for one in fields(StoreConfig)
        if getattr(config, one.name) != getattr(default, one.name)
    }
    if changed:
        lines += ["store:", *(f"  {name}: {value}" for name, value in changed.items())]
    return "\n".join(lines) + "\n"


def _absolute(path: Path) -> str:
    return str(path.expanduser().absolute())
