"""docs/client-settings.md: the fields of the client's public classes, with the docstrings behind them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

from pocketmq import client
from pocketmq.client.config import ClientConfig, ReadingConfig

from .limits import number, number_limits
from .markdown import code, plain, table

#: Blocks of settings: the class whose fields are listed, and the class whose fields are listed elsewhere.
SETTINGS: Final = {
    "settings of all clients": (ClientConfig, None),
    "settings of producers": (client.ProducerConfig, ClientConfig),
    "settings of all consumers": (ReadingConfig, ClientConfig),
    "settings of pull consumers": (client.ConsumerConfig, ReadingConfig),
    "settings of push consumers": (client.PushConfig, ReadingConfig),
}
#: Fields of what clients return and take, by block.
CLASSES: Final = {
    "messages": ("Message", "UnserializedMessage", "Queue", "Sql"),
    "results": ("Receipt", "PullResult", "SendBackResult", "OffsetAndMetadata", "Retry", "Reject"),
    "metrics of clients": (
        "ProducerMetrics",
        "PushMetrics",
        "ConsumerMetrics",
        "HistogramSnapshot",
    ),
    "descriptions": (
        "TopicDescription",
        "QueueDescription",
        "TopicTraffic",
        "GroupDescription",
        "GroupPosition",
        "GroupStatus",
        "GroupMember",
        "GroupQueue",
        "OffsetReset",
        "FilterStats",
        "OffsetTarget",
        "OffsetChange",
        "DeadLetter",
        "ResentDeadLetter",
        "BrokerDescription",
        "BrokerClock",
    ),
}
_WORDS: Final = {int: "integer", str: "text", bool: "`True`, `False`", type(None): "`None`"}


def settings_block(name: str) -> Callable[[], str]:
    """Return what makes the table of block NAME of SETTINGS."""
    return lambda: _settings(*SETTINGS[name])


def classes_block(name: str) -> Callable[[], str]:
    """Return what makes the sections of block NAME of CLASSES."""
    return lambda: "\n".join(map(_class, CLASSES[name]))


def _settings(cls: type[Any], base: type[Any] | None) -> str:
    hints, documented = typing.get_type_hints(cls), documented_fields(cls)
    of_base = documented_fields(base) if base else {}
    rows = [
        (
            code(one.name),
            _type(hints[one.name]).replace("integer", f"integer {_limit(cls, one)}".strip()),
            _default(one.default),
            plain(documented[one.name]),
        )
        for one in dataclasses.fields(cls)
        if documented[one.name] != of_base.get(one.name)
    ]
    return table(("Setting", "Type and limits", "Default", "Meaning"), rows)


def _limit(cls: type[Any], one: dataclasses.Field[Any]) -> str:
    if one.type not in ("int", "int | None"):
        return ""
    return number_limits(lambda value: cls(**{one.name: value}))


def _default(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return number(value)
    return "empty" if value in ("", ()) else code(f"{value!r}".replace("'", '"'))


def _type(hint: Any) -> str:
    """Return what a person calls the type HINT."""
    if hint in _WORDS:
        return _WORDS[hint]
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f'`"{one}"`' for one in inner)
    if origin in (typing.Union, types.UnionType):
        return ", ".join(dict.fromkeys(map(_type, inner)))
    if origin is type:
        return "class"
    if inspect.isclass(origin) and issubclass(origin, Sequence):
        return "list"
    if getattr(origin or hint, "_is_protocol", False):
        return "object"
    return "function" if callable(origin) else hint.__name__


def _class(name: str) -> str:
    cls: Any = getattr(client, name)
    documented, annotations = documented_fields(cls), _annotations(cls)
    rows = [
        (code(field), code(annotations[field]), plain(text)) for field, text in documented.items()
    ]
    return f"### {name}\n\n{table(('Field', 'Type', 'Meaning'), rows)}"


def _annotations(cls: type[Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("pocketmq"):
            found |= {name: str(kind) for name, kind in inspect.get_annotations(base).items()}
    return {name: _unwrapped(kind) for name, kind in found.items()}


def _unwrapped(kind: str) -> str:
    """Return KIND without the ForwardRef('…') that a NamedTuple makes of its annotations."""
    return kind.removeprefix("ForwardRef('").partition("'")[0]


def documented_fields(cls: type[Any]) -> dict[str, str]:
    """Return the first paragraph of the docstring of each public field of CLS and its base classes.

    Raises ValueError if a field has none.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("pocketmq"):
            found |= _own_fields(base)
    return found


def _own_fields(cls: type[Any]) -> dict[str, str]:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(node, ast.ClassDef)
    found: dict[str, str] = {}
    for at, statement in enumerate(node.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        name = statement.target.id
        if name.startswith("_") or "ClassVar" in ast.unparse(statement.annotation):
            continue
        match node.body[at + 1 : at + 2]:
            case [ast.Expr(value=ast.Constant(value=str(text)))]:
                found[name] = " ".join(text.partition("\n\n")[0].split())
            case _:
                raise ValueError(f"{cls.__name__}.{name} has no docstring")
    return found
