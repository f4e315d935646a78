"""Strategies by name, by class, by object, or by entry point: what settings hold becomes a strategy."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, Final

from ...proto.errors import ConfigError
from .average import Average
from .average_by_circle import AverageByCircle
from .configured import Configured
from .consistent_hash import ConsistentHash
from .machine_room import MachineRoom
from .machine_room_nearby import MachineRoomNearby
from .sticky import Sticky
from .strategy import Strategy

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

#: A package announces strategies in `[project.entry-points."pocketmq.allocation"]`, as name = "module:Class".
ENTRY_POINTS: Final = "pocketmq.allocation"
_NEARBY: Final = "machine-room-nearby"

_KNOWN: Final[dict[str, Callable[..., Strategy]]] = {
    "average": Average,
    "average-by-circle": AverageByCircle,
    "consistent-hash": ConsistentHash,
    "machine-room": MachineRoom,
    _NEARBY: MachineRoomNearby,
    "configured": Configured,
    "sticky": Sticky,
}


def strategy_named(wanted: str | type[Strategy] | Strategy) -> Strategy:
    """Return the strategy that WANTED is or names.

    A name is one of this package's, "machine-room-nearby-" and another's, an entry point's, or "module:Class" of a
    class that needs no arguments. Raises ConfigError, which lists the names that are known.
    """
    if isinstance(wanted, str):
        return _by_name(wanted)
    if isinstance(wanted, type):
        return _made(wanted, wanted.__name__)
    return _checked(wanted, repr(wanted))


def known_strategies() -> list[str]:
    """Return the names of this package's strategies, then those of entry points."""
    return [
        *_KNOWN,
        *sorted({point.name for point in _points()} - set(_KNOWN)),
    ]


def _points(name: str | None = None) -> tuple[EntryPoint, ...]:
    """Return the entry points of strategies, or those called NAME."""
    from importlib.metadata import entry_points  # As long as a fifth of all other imports.

    found = entry_points(group=ENTRY_POINTS)
    return tuple(found if name is None else found.select(name=name))


def _by_name(name: str) -> Strategy:
    if name in _KNOWN:
        return _made(_KNOWN[name], name)
    if name.startswith(_NEARBY + "-"):
        return MachineRoomNearby(_by_name(name.removeprefix(_NEARBY + "-")))
    if points := _points(name):
        return _made(_loaded(points[0].value, name), name)
    if ":" in name:
        return _made(_loaded(name, name), name)
    raise _refused(name, f"is not known: choose {', '.join(known_strategies())}, or module:Class")


def _loaded(path: str, name: str) -> Any:
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module.strip()), attribute.strip())
    except (ImportError, AttributeError, ValueError) as error:
        raise _refused(name, f"cannot be loaded from {path!r}: {error}") from error


def _made(kind: Any, name: str) -> Strategy:
    """Return what KIND, a class, makes; what is no class is the strategy itself."""
    if not callable(kind):
        return _checked(kind, name)
    try:
        made = kind()
    except TypeError as error:
        raise _refused(
            name, f"needs {_arguments(kind)}: hand over an object that has them"
        ) from error
    return _checked(made, name)


def _arguments(kind: Callable[..., Any]) -> str:
    """Return what KIND must be given, in words."""
    try:
        needed = [
            one.name
            for one in signature(kind).parameters.values()
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):  # Classes of C may not tell.
        needed = []
    return f"arguments ({', '.join(needed)})" if needed else "arguments"


def _checked(strategy: Any, name: str) -> Strategy:
    if not isinstance(getattr(strategy, "name", None), str) or not callable(
        getattr(strategy, "allocate", None)
    ):
        raise _refused(name, "is no strategy: it needs a `name` and `allocate(members, queues)`")
    result: Strategy = strategy
    return result


def _refused(name: str, why: str) -> ConfigError:
    return ConfigError(f"allocation strategy {name!r} {why}", field="strategy", value=name)
