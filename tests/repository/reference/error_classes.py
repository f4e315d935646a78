"""docs/errors.md: every class of errors, with its codes, cause and remedy."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Final

from pocketmq.broker.service_v2.statuses import code_of
from pocketmq.proto.errors import BY_NAME, ClientError, InvalidName, PocketMQError
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.tools.cli import exit_code

from .markdown import cell, code, plain, table

_PAGE: Final = re.compile(r"docs/([\w-]+)\.md")


def overview() -> str:
    """Return the tree of classes, with their codes."""
    rows = [
        (
            f"{'· ' * depth}[{kind.__name__}](#{kind.__name__.lower()})",
            code(kind.status),
            _v2_codes(kind),
            "yes" if kind.retriable else "no",
            str(exit_code(kind(""))),
        )
        for depth, kind in _tree(PocketMQError)
    ]
    return table(("Error", "gRPC status", "v2 code", "Retriable", "Exit code"), rows)


def classes() -> str:
    """Return a section for each class, by name."""
    return "\n".join(_section(kind) for _, kind in sorted(BY_NAME.items()))


def _tree(kind: type[PocketMQError], depth: int = 0) -> Iterator[tuple[int, type[PocketMQError]]]:
    yield depth, kind
    for child in kind.__subclasses__():
        if child.__name__ in BY_NAME:
            yield from _tree(child, depth + 1)


def _v2_codes(kind: type[PocketMQError]) -> str:
    """Return the codes that official clients get, as Markdown. Errors of clients are not sent."""
    if issubclass(kind, ClientError):
        return "–"
    fields = ("topic", "group") if kind is InvalidName else ("",)
    return ", ".join(code(v2.Code.Name(code_of(kind("", field=one)))) for one in fields)


def _section(kind: type[PocketMQError]) -> str:
    text = inspect.getdoc(kind) or ""
    meaning, cause, remedy = (_linked(part) for part in re.split(r"\n+(?:Cause|Remedy): ", text))
    parent = kind.__mro__[1].__name__
    subclass = f" A [{parent}](#{parent.lower()})." if parent in BY_NAME else ""
    return f"### {kind.__name__}\n\n{meaning}{subclass}\n\n- **Cause**: {cause}\n- **Remedy**: {remedy}\n"


def _linked(text: str) -> str:
    return _PAGE.sub(r"[\1](\1.md)", plain(cell(text)))
