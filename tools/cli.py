"""The `pocketmq` command: one file a verb, each imported only when it runs.

`pocketmq serve` must stand in well under a second, and `pocketmq send` too: this file imports click, the
error tree and a group of verbs (`lazy_group.py`), and says in a table what every verb is, so that `--help` loads none.

Exit codes, the same for all verbs:

    0  done                     3  not found                        130  interrupted
    1  the operation failed     4  nobody answered, try again       141  the reader of the output went away
    2  wrong usage, name or     5  something is in the way: it exists already, the store is in use
       configuration            6  stored bytes are damaged

An error is one line on standard error, `pocketmq: what is wrong`, that says what to do. Only a fault in PocketMQ
itself shows a traceback.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final, NoReturn

import click
from click.shell_completion import shell_complete

from .. import __version__
from ..proto.errors import (
    ConfigError,
    ConnectionLost,
    InvalidArgument,
    InvalidFilter,
    PocketMQError,
)
from ..proto.renamed import OPTIONS
from .lazy_group import LazyGroup
from .terminal import guarded

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

#: The shell sets it when it asks for completions.
COMPLETION_VARIABLE: Final = "_POCKETMQ_COMPLETE"

_UNKNOWN_VERB: Final = re.compile(r"No such command '(.{1,100})'\.")
_CODES: Final = {
    "NOT_FOUND": 3,
    "UNAVAILABLE": 4,
    "DEADLINE_EXCEEDED": 4,
    "RESOURCE_EXHAUSTED": 4,
    "ALREADY_EXISTS": 5,
    "FAILED_PRECONDITION": 5,
    "ABORTED": 5,
    "DATA_LOSS": 6,
}

#: Read by libraries when they are first imported, which no import of this file does: numpy's BLAS would start a thread
#: and take 32 MiB of buffers per core, though nothing here multiplies matrices; gRPC would log in a form of its own.
_ENVIRONMENT: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GRPC_VERBOSITY": "NONE",
}

#: Verb, (module and object, what it does).
_VERBS: Final[dict[str, tuple[str, str]]] = {
    "serve": ("serve:serve", "Run a name server and a broker in one process."),
    "nameserver": ("serve:nameserver", "Run a name server."),
    "broker": ("serve:broker", "Run a broker."),
    "topic": ("topic:topic", "Create, change, list, describe and delete topics."),
    "group": ("group:group", "Create, change, list, describe, move and delete consumer groups."),
    "send": ("send:send", "Send messages to a topic."),
    "recall": ("send:recall", "Take back a delayed message before it is due."),
    "consume": ("consume:consume", "Print the messages of a topic as a consumer group."),
    "record": ("record:record", "Write what a topic received to a file of lines."),
    "replay": (
        "record:replay",
        "Send the messages of such a file again, at the same pace or faster.",
    ),
    "dead-letters": (
        "dead_letters:dead_letters",
        "List, re-send and purge messages that a group could not handle.",
    ),
    "advise": ("advise:advise", "Measure a listener, and propose threads, processes and nodes."),
    "lookup": ("lookup.command:lookup", "Find messages by key, id, offset or time, also in files."),
    "why": ("why.command:why", "Show the history of one message."),
    "clock": ("clock:clock", "Tell the brokers' time, and move it where it is virtual."),
    "cluster": (
        "cluster.command:cluster",
        "Show the brokers and how they are; make, show and move replica sets.",
    ),
    "user": ("users:user", "Create, change, list and delete users."),
    "acl": ("users:acl", "Say what users may do, and try it."),
    "console": ("console.command:console", "Show the console of a broker in a browser."),
    "health": ("health:health", "Tell whether servers serve, for probes."),
    "config": ("config:config", "Show a server's settings, and change those that need no restart."),
    "connections": (
        "connections:connections",
        "Show who is connected to brokers and name servers.",
    ),
    "lag": ("lag.command:lag", "Tell how far consumer groups are behind, and why."),
    "top": ("top:top", "Show live rates, lag with verdicts, and who holds which queue."),
    "lint": (
        "lint.command:lint",
        "Find what is likely a mistake in topics, groups and messages.",
    ),
    "export": ("export:export", "Write the messages of stores to Parquet files."),
    "inspect": ("inspect.command:inspect", "Describe a store on disk, without writing a byte."),
    "doctor": (
        "doctor.diagnosis:doctor",
        "Say what a start would cut, rebuild and lose, for both brokers.",
    ),
    "diff": ("diff.command:diff", "Compare two stores by what they mean."),
    "repair": ("repair:repair", "Make a repaired copy of a store."),
    "follow": ("follow.command:follow", "Take the log of a Java broker into a store, as it grows."),
    "promote": ("follow.command:promote", "Make the store of a follower a broker's own."),
    "fork": ("fork.forking:fork", "Make a store of what another one held at a moment."),
    "spark": ("spark.jobs.command:spark", "Run jobs over stores on Apache Spark."),
    "bench": ("bench.command:bench", "Measure this machine and PocketMQ on it."),
    "demo": ("demo:demo", "Move real data through PocketMQ, and break it, in a minute."),
    "completion": ("lazy_group:completion", "Print a completion script for a shell."),
}


@click.group(
    cls=LazyGroup,
    table=_VERBS,
    package=__package__,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Exit codes: 0 done, 1 failed, 2 wrong usage, name or configuration, 3 not found, 4 nobody answered (try again),
5 something is in the way (it exists already, the store is in use), 6 stored bytes are damaged,
130 interrupted, 141 the reader of the output went away.""",
)
@click.version_option(__version__, prog_name="pocketmq", message="%(prog)s %(version)s")
def cli() -> None:
    """A message broker that keeps Apache RocketMQ's store format.

    Start with `pocketmq serve`, then `pocketmq send TOPIC hello` in another shell.
    """


def exit_code(error: PocketMQError) -> int:
    """Return the exit code that tells ERROR."""
    if isinstance(error, ConfigError | InvalidArgument):
        return USAGE
    if isinstance(error.__cause__, ConnectionLost):  # No route, because no name server answered.
        return _CODES[ConnectionLost.status]
    return _CODES.get(error.status, FAILED)


def run(arguments: Sequence[str]) -> int:
    """Run the command with ARGUMENTS; return its exit code. Errors have been printed."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Without any handler logging would print warnings in the middle of the output; servers set up their own.
    logging.getLogger("pocketmq").addHandler(logging.NullHandler())
    with guarded():
        return _ran(list(arguments))


def _ran(arguments: list[str]) -> int:
    try:
        _invoke(arguments)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return USAGE
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "pocketmq"
        _complain(f"{_usage_problem(error)} See: {where} --help")
        return USAGE
    except click.ClickException as error:
        _complain(error.format_message())
        return error.exit_code
    except PocketMQError as error:
        _complain(error.message, as_it_is=isinstance(error, InvalidFilter))
        return exit_code(error)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes standard output once more at its end: let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (OSError, MemoryError) as error:
        _complain(_reason(error))
        return FAILED
    return 0


def _usage_problem(error: click.UsageError) -> str:
    """Return what ERROR says, with the new name of an option that was renamed, or a similar command."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        known = {name for option in error.ctx.command.params for name in option.opts}
        for name in OPTIONS.get(error.option_name, ()):
            if name in known:
                return f"{error.message.rstrip('.')}. Use {name!r}."
    return f"{error.format_message()}{_suggestion(error)}"


def _suggestion(error: click.UsageError) -> str:
    """Return " Did you mean 'send'?" for a verb that does not exist, if one is alike."""
    unknown = _UNKNOWN_VERB.fullmatch(
        error.format_message()
    )  # Newer versions of click suggest some themselves.
    if unknown is None or error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return ""
    alike = get_close_matches(unknown[1], error.ctx.command.list_commands(error.ctx))
    return f" Did you mean {' or '.join(map(repr, alike))}?" if alike else ""


def _reason(error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return f"not enough memory ({error}): give the process more (ulimit -v, its container)"
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _invoke(arguments: list[str]) -> None:
    """What click's own `main` does, but that it would answer a broken pipe and an interrupt in its way."""
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        raise click.exceptions.Exit(
            shell_complete(cli, {}, "pocketmq", COMPLETION_VARIABLE, instruction)
        )
    with cli.make_context("pocketmq", arguments) as ctx:
        cli.invoke(ctx)


def _complain(message: str, *, as_it_is: bool = False) -> None:
    """Print MESSAGE in one line; AS_IT_IS: its further lines show where something is wrong."""
    click.echo(f"pocketmq: {message if as_it_is else ' '.join(message.split())}", err=True)


def main() -> NoReturn:
    """The entry point."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
