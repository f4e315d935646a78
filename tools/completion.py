"""Completion of the names of topics and groups, which brokers are asked for.

    @click.argument("topic", shell_complete=topic_names)
    @click.option("--group", shell_complete=group_names)

The name servers are those of the line so far, else of the environment. If no broker answers within a second, or the
line names a store, nothing is proposed. Limit: NAMES_MAX names; those that a shell would not take as one word are
left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import click

from ..proto.errors import PocketMQError

if TYPE_CHECKING:
    from ..client import Admin

NAMES_MAX: Final = 500
_TIMEOUT_MS: Final = 1_000
_WORD: Final = re.compile(r"[A-Za-z0-9_%.-]+", re.ASCII)
_Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _names(found: Callable[[Admin], Iterable[str]]) -> _Completer:
    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
        if ctx.params.get("stores") or ctx.params.get("store"):
            return []
        from ..client import Admin

        names: list[str] = []
        nameserver = ctx.params.get("nameserver")
        with (
            suppress(PocketMQError, OSError),
            Admin(nameserver, request_timeout_ms=_TIMEOUT_MS) as admin,
        ):
            names = [name for name in found(admin) if name.startswith(incomplete)]
        return [name for name in names if _WORD.fullmatch(name)][:NAMES_MAX]

    return complete


topic_names: Final = _names(lambda admin: (one.name for one in admin.topics()))
group_names: Final = _names(lambda admin: (one.name for one in admin.groups()))
