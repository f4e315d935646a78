"""docs/environment.md: the environment variables that are read, and the options that stand for them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Final

import click

from pocketmq.proto.renamed import VARIABLES
from pocketmq.tools.cli import cli

from ..source_tree import code_files
from .markdown import code, plain, table

#: What is read where: clients means every client, also those of commands; then the default, and the meaning.
_VARIABLES: Final = {
    "POCKETMQ_NAMESERVER": (
        "clients, commands, `pocketmq broker`, `pocketmq health`",
        "`127.0.0.1:9876`",
        "Addresses of the name servers, host:port, separated by commas.",
    ),
    "POCKETMQ_USER": (
        "clients, commands",
        "calls are not signed",
        "User that signs the calls, if the servers have users. It needs a secret.",
    ),
    "POCKETMQ_SECRET": ("clients, commands", "none", "Secret of this user."),
    "POCKETMQ_SECRET_FILE": (
        "clients, commands",
        "none",
        "File whose first line is the secret, mode 0600. `POCKETMQ_SECRET` wins.",
    ),
    "POCKETMQ_TLS": (
        "clients, commands, `pocketmq broker`",
        "TLS if an authority or a certificate is given",
        "`1`: TLS; `0`: plaintext. Also `true`, `yes`, `on` and `false`, `no`, `off`.",
    ),
    "POCKETMQ_TLS_CA": (
        "clients, commands, `pocketmq broker`",
        "authorities of the system",
        "PEM file of the authorities of servers' certificates.",
    ),
    "POCKETMQ_TLS_CERT": ("clients, commands", "none", "PEM file of the client's certificate."),
    "POCKETMQ_TLS_KEY": ("clients, commands", "none", "PEM file of its key."),
    "POCKETMQ_DOCS_URL": (
        "clients, commands",
        "the site of the release; none in a checkout",
        "Address of the documentation that errors refer to (`error.doc_url`).",
    ),
    "POCKETMQ_PURE": (
        "clients, servers, commands, and the installation",
        "not set",
        "Any value: the Python code runs instead of the C core (see Installation). While you install: do not build it.",
    ),
    "POCKETMQ_INSECURE": (
        "servers",
        "not set",
        "`1`: listen on other addresses than loopback without users.",
    ),
    "POCKETMQ_USERS": ("`pocketmq user`, `pocketmq acl`", "none", "File of users."),
    "POCKETMQ_ZOOKEEPER": (
        "`pocketmq replicas`",
        "`127.0.0.1:2181`",
        "ZooKeeper servers of the replica sets.",
    ),
    "POCKETMQ_SETTINGS": (
        "`PocketMQContainer`, in its container",
        "set by the class",
        "Text of the configuration file. Do not set it yourself.",
    ),
    "POCKETMQ_BENCH_TASKS": (
        "`pocketmq bench tasks`, in its workers",
        "set by the command",
        "Address of the broker that is measured. Do not set it yourself.",
    ),
    "POCKETMQ_BENCH_TASKS_LOG": (
        "`pocketmq bench tasks`, in its workers",
        "set by the command",
        "File for the times of tasks. Do not set it yourself.",
    ),
    "_POCKETMQ_COMPLETE": (
        "the command",
        "set by the shell",
        "Asks for completions, see `pocketmq completion`.",
    ),
    "XDG_DATA_HOME": (
        "servers",
        "`~/.local/share`",
        "Folder below which the store is by default, in `pocketmq/store`.",
    ),
    "XDG_CACHE_HOME": ("`pocketmq demo`", "`~/.cache`", "Folder of the data of the demo."),
    "JAVA_HOME": (
        "`pocketmq spark`, Spark sessions, `pocketmq bench`",
        "`java` of the path, else of the extra `jre`",
        "Java for Spark.",
    ),
    "SPARK_LOCAL_IP": (
        "`pocketmq spark`, Spark sessions",
        "`127.0.0.1` with a local master",
        "Address of Spark's driver.",
    ),
    "PYSPARK_PYTHON": (
        "`pocketmq spark`, Spark sessions",
        "the Python that runs",
        "Python of Spark's workers. `PYSPARK_DRIVER_PYTHON` is that of the driver.",
    ),
    "OPENBLAS_NUM_THREADS": ("the command", "`1`", "Threads of OpenBLAS."),
    "OMP_NUM_THREADS": ("the command", "`1`", "Threads of OpenMP."),
    "MKL_NUM_THREADS": ("the command", "`1`", "Threads of MKL."),
    "GRPC_VERBOSITY": ("the command, with grpcio", "`NONE`", "Log lines of the library grpcio."),
}
_NAME: Final = re.compile(r"\b_?POCKETMQ_[A-Z_]*[A-Z]\b")


def variables() -> str:
    """Return all variables."""
    rows = [
        (code(name), where, _options()[name], default, plain(meaning))
        for name, (where, default, meaning) in _VARIABLES.items()
    ]
    return table(("Variable", "Read by", "Option", "Default", "Meaning"), rows)


def read_variables() -> set[str]:
    """Return the variables of PocketMQ that product code names, without old names, which are refused."""
    found = {name for path in code_files() for name in _NAME.findall(path.read_text("utf-8"))}
    return found - set(VARIABLES)


@cache
def _options() -> defaultdict[str, str]:
    """Return the options that stand for each variable."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for option in _all_options(cli, click.Context(cli)):
        for name in [option.envvar] if isinstance(option.envvar, str) else option.envvar or ():
            found[name].add(option.opts[0])
        if shown := re.search(r"\[env var: (\w+)\]", option.help or ""):
            found[shown[1]].add(option.opts[0])
    return defaultdict(
        str, {name: ", ".join(map(code, sorted(one))) for name, one in found.items()}
    )


def _all_options(command: click.Command, context: click.Context) -> Iterator[click.Option]:
    yield from (one for one in command.params if isinstance(one, click.Option) and not one.hidden)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None:
                yield from _all_options(inner, context)


def options_that_hide_their_variable() -> list[str]:
    """Return the options that read a variable which their help does not show."""
    return [
        one.opts[0]
        for one in _all_options(cli, click.Context(cli))
        if one.envvar and not one.show_envvar
    ]
