"""The `pocketmq` command: one module per verb, imported only when the verb runs.

`pocketmq serve` and `pocketmq send` must be ready in well under a second. So this module imports only click, the
errors and a group of verbs (`lazy_group.py`), and has a table of all verbs, from which `--help` is made.

The exit codes are in the epilog of `cli`. An error is one line on standard error, `pocketmq: what is wrong`, with a
remedy. Without `--json` the next line says where the documentation explains it. Only a fault in PocketMQ itself shows
a traceback.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final, NoReturn

import click
from click.shell_completion import shell_complete

from .. import __version__
from ..proto import speedups
from ..proto.errors import (
    ConfigError,
    ConnectionLost,
    InvalidArgument,
    InvalidFilter,
    PocketMQError,
)
from ..proto.renamed import OPTIONS, VERBS
from .lazy_group import CommandTable, LazyGroup
from .terminal import guarded

FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141

#: The shell sets it when it asks for completions.
COMPLETION_VARIABLE: Final = "_POCKETMQ_COMPLETE"

_UNKNOWN_VERB: Final = re.compile(r"No such command '(.{1,100})'\.")
#: How click names its types of numbers in an error is not English.
_NOT_VALID: Final = re.compile(r"is not a valid (integer|float|seconds)(?: range)?\b")
_NUMBERS: Final = {"integer": "whole number", "float": "number", "seconds": "number of seconds"}
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

#: Libraries read it when they are imported, which happens after this module. Without it numpy's BLAS would start a
#: thread and take 32 MiB of buffers per core, though nothing here multiplies matrices; gRPC would log in its own form.
_ENVIRONMENT: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "GRPC_VERBOSITY": "NONE",
}

#: Verbs by section of the help: (module and object, help text).
_SECTIONS: Final[Mapping[str, CommandTable]] = {
    "Run": {
        "serve": ("serve:serve", "Run a name server and a broker in one process."),
        "nameserver": ("serve:nameserver", "Run a name server."),
        "broker": ("serve:broker", "Run a broker."),
        "config": ("config:config", "Show or change the settings of a running server."),
        "console": ("console.command:console", "Open the web console of a broker."),
    },
    "Topics and groups": {
        "topic": ("topic:topic", "Create, update, list, describe and delete topics."),
        "group": (
            "group:group",
            "Create, update, list, describe, reset and delete consumer groups.",
        ),
    },
    "Messages": {
        "send": ("send:send", "Send messages to a topic."),
        "recall": ("send:recall", "Cancel a delayed message before it is due."),
        "consume": ("consume:consume", "Print the messages of a topic."),
        "find": (
            "find.command:find",
            "Find messages by key, id, offset or time.",
        ),
        "trace": ("trace.command:trace", "Show the history of one message."),
        "record": ("record:record", "Write the messages of a topic to a JSON Lines file."),
        "replay": ("record:replay", "Send the messages of a recording again."),
    },
    "Consumers": {
        "lag": ("lag.command:lag", "Show the lag of consumer groups and its cause."),
        "top": ("top:top", "Show live rates, lag and queue owners."),
        "dead-letters": (
            "dead_letters:dead_letters",
            "List, resend and purge the dead-letter queue of a group.",
        ),
        "lint": ("lint.command:lint", "Find likely mistakes in topics, groups and messages."),
        "size": (
            "size:size",
            "Measure a listener and recommend threads, processes and nodes.",
        ),
    },
    "Operate": {
        "brokers": ("brokers:brokers", "Show every broker and its state."),
        "replicas": (
            "replicas.command:replicas",
            "Create, show and change replica sets; change their master.",
        ),
        "connections": (
            "connections:connections",
            "Show the connections of brokers and name servers.",
        ),
        "health": ("health:health", "Check that servers are ready, for probes."),
        "clock": ("clock:clock", "Show the brokers' time, or advance a virtual clock."),
    },
    "Security": {
        "user": ("users:user", "Create, update, list and delete users."),
        "acl": ("users:acl", "Set and test the permissions of users."),
    },
    "Store files": {
        "inspect": ("inspect.command:inspect", "Show the contents of a store without changing it."),
        "doctor": (
            "doctor.command:doctor",
            "Show what a start of the broker would cut, rebuild and lose.",
        ),
        "repair": ("repair:repair", "Write a repaired copy of a store."),
        "diff": ("diff.command:diff", "Compare the contents of two stores."),
        "fork": (
            "fork.command:fork",
            "Create a store with the contents of another at a given time.",
        ),
        "export": ("export:export", "Write messages of stores to Parquet files."),
        "spark": ("spark.jobs.command:spark", "Run Apache Spark jobs on stores."),
    },
    "Migrate": {
        "follow": ("follow.command:follow", "Copy the log of a running Java broker into a store."),
        "promote": ("follow.command:promote", "Make a followed store ready for a broker."),
    },
    "Develop": {
        "bench": ("bench.command:bench", "Measure PocketMQ on this machine."),
        "demo": (
            "demo.command:demo",
            "Send real data, kill the broker, and check that nothing is lost.",
        ),
        "completion": ("completion_script:completion", "Print a completion script for a shell."),
    },
}


@click.group(
    cls=LazyGroup,
    sections=_SECTIONS,
    package=__package__,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Exit codes: 0 done, 1 failed, 2 wrong usage, name or configuration, 3 not found, 4 no answer (try again),
5 conflict (it exists already, the store is in use, TLS does not match), 6 stored bytes are damaged,
130 interrupted, 141 the reader of the output has closed it.

\b
If servers have users, set POCKETMQ_USER, and POCKETMQ_SECRET or POCKETMQ_SECRET_FILE (a file with the secret).""",
)
@click.version_option(
    __version__, prog_name="pocketmq", message=f"%(prog)s %(version)s ({speedups.running()})"
)
def cli() -> None:
    """A message broker with the store format of Apache RocketMQ.

    Start with `pocketmq serve`, then `pocketmq send TOPIC hello` in another shell.
    """


def exit_code(error: PocketMQError) -> int:
    """Return the exit code for ERROR."""
    if isinstance(error, ConfigError | InvalidArgument):
        return USAGE
    if isinstance(
        error.__cause__, ConnectionLost
    ):  # There is no route because no name server answered.
        return _CODES[ConnectionLost.status]
    return _CODES.get(error.status, FAILED)


def run(arguments: Sequence[str]) -> int:
    """Run the command with ARGUMENTS; return its exit code. Errors have been printed."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Without a handler, logging would print warnings in the middle of the output. Servers set up their own.
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
        # The page says nothing about the root class, and programs that read JSON want no second line.
        if type(error) is not PocketMQError and "--json" not in arguments:
            click.echo(f"See {error.doc_url}", err=True)
        return exit_code(error)
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # The interpreter flushes standard output at its end: that must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (OSError, MemoryError) as error:
        _complain(_reason(error))
        return FAILED
    return 0


def _usage_problem(error: click.UsageError) -> str:
    """Return the text of ERROR, with the new name of a renamed option, or a similar command."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        known = {name for option in error.ctx.command.params for name in option.opts}
        for name in OPTIONS.get(error.option_name, ()):
            if name in known:
                return f"{error.message.rstrip('.')}. Use {name!r}."
    problem = _NOT_VALID.sub(lambda found: f"is not a {_NUMBERS[found[1]]}", error.format_message())
    if not problem.endswith((".", "?", "!", ")")):
        problem += "."
    return f"{problem}{_suggestion(error)}"


def _suggestion(error: click.UsageError) -> str:
    """Return " Use 'brokers'." for a renamed verb, " Did you mean 'send'?" for a similar one, or ""."""
    # Newer versions of click add suggestions themselves: their text does not match.
    unknown = _UNKNOWN_VERB.fullmatch(error.format_message())
    if unknown is None or error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return ""
    known = error.ctx.command.list_commands(error.ctx)
    if new := [name for name in VERBS.get(unknown[1], ()) if name in known]:
        return f" Use {' or '.join(map(repr, new))}."
    alike = get_close_matches(unknown[1], known)
    return f" Did you mean {' or '.join(map(repr, alike))}?" if alike else ""


def _reason(error: OSError | MemoryError) -> str:
    if isinstance(error, MemoryError):
        return f"not enough memory ({error}): give the process more (ulimit -v, or the limit of its container)"
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _invoke(arguments: list[str]) -> None:
    """Do what click's `main` does, except that a broken pipe and an interrupt reach the caller."""
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        raise click.exceptions.Exit(
            shell_complete(cli, {}, "pocketmq", COMPLETION_VARIABLE, instruction)
        )
    with cli.make_context("pocketmq", arguments) as ctx:
        cli.invoke(ctx)


def _complain(message: str, *, as_it_is: bool = False) -> None:
    """Print MESSAGE in one line; AS_IT_IS: with all its lines, which show the position of an error."""
    click.echo(f"pocketmq: {message if as_it_is else ' '.join(message.split())}", err=True)


def main() -> NoReturn:
    """The entry point."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
