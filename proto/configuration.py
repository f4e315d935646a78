"""Configuration: the sections of one YAML file become frozen dataclasses, and whatever is wrong is named.

A file is a mapping of sections, a section a mapping of keys; each section belongs to one dataclass, whose fields are
the keys and whose defaults hold for what the file leaves out:

    broker:
      port: 8081          # BrokerConfig.port

Nothing is guessed: an unknown section or key, a key given twice, a value of the wrong type and a value that the
dataclass refuses in `__post_init__` are each a ConfigError that names file, line, section and key, and for a misspelt
name the nearest known one. A key that there is no more is refused with what its class says of it in REMOVED_KEYS. Sizes
and durations are plain integers whose unit stands at the end of the key.

Types that a field may have: bool, int, float, str, Path, Literal of strings, tuple[X, …], dict[str, X], and any of
them or None. Environment variables are not looked at.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar, Union

from .errors import ConfigError


class Dataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


Section = TypeVar("Section", bound=Dataclass)
#: Line of each key by its path, such as ("broker", "port"), counted from 1.
Lines = Mapping[tuple[str, ...], int]

_DEPTH_MAX: Final = 3  # a section, its key, a key of that mapping; an alias could go round for ever
#: Milliseconds, bytes and counts alike: both a float and 64 bits hold it exactly.
_WHOLE_MAX: Final = 2**53
#: What PyYAML raises for `2026-13-45`, `!!int x`, `!!bool x`, `!!timestamp x` and the like.
_VALUE_ERRORS: Final = (ValueError, LookupError, AttributeError, ArithmeticError)
_WORDS: Final[dict[type, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    Path: "a path",
}


def load_sections(
    path: Path,
    sections: Mapping[str, type[Dataclass]],
    defaults: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({}),
    origins: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return an instance of each class in SECTIONS, by section, from the file at PATH.

    A key that the file leaves out has its value in DEFAULTS (by section and key), or else that of its dataclass.
    ORIGINS is told the file and line of each "section.key" in it.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(
            f"{path}: the configuration cannot be read: {reason}", file=path
        ) from None
    return parse_sections(text, sections, str(path), defaults, origins)


def parse_sections(
    text: str,
    sections: Mapping[str, type[Dataclass]],
    name: str = "configuration",
    defaults: Mapping[str, Mapping[str, Any]] = types.MappingProxyType({}),
    origins: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return what `load_sections` does, for TEXT; errors call it NAME."""
    document, lines = _read_yaml(text, name) if text else ({}, {})
    if origins is not None:
        origins |= {
            f"{path[0]}.{path[1]}": _where(name, lines, path) for path in lines if len(path) == 2
        }
    for key in document:
        if key not in sections:
            where = _where(name, lines, (key,))
            raise ConfigError(
                f"{where}: no section {key!r}{nearest(key, sections)}", file=name, section=key
            )
    return {
        title: section(
            cls,
            document.get(title),
            name,
            title=title,
            lines=lines,
            defaults=defaults.get(title, {}),
        )
        for title, cls in sections.items()
    }


def section(
    cls: type[Section],
    values: object,
    name: str,
    *,
    title: str,
    lines: Lines = types.MappingProxyType({}),
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
) -> Section:
    """Return CLS built from the mapping VALUES, which is section TITLE of the file called NAME."""
    where = _where(name, lines, (title,))
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: {title}: keys with values are wanted, not {_shown(values)}")
    known = {field.name: field for field in dataclasses.fields(cls) if field.init}
    hints = typing.get_type_hints(cls)
    arguments = dict(defaults)
    for key, value in values.items():
        where = _where(name, lines, (title, key))
        if key not in known:
            removed = getattr(cls, "REMOVED_KEYS", {}).get(key)
            remedy = f" any more: {removed}" if removed else nearest(key, known)
            raise ConfigError(
                f"{where}: {title}.{key}: no such key{remedy}",
                file=name,
                section=title,
                key=key,
            )
        arguments[key] = _typed(value, hints[key], f"{where}: {title}.{key}")
    return _built(cls, arguments, _where(name, lines, (title,)), title)


def _built(cls: type[Section], arguments: dict[str, Any], where: str, title: str) -> Section:
    missing = [
        field.name
        for field in dataclasses.fields(cls)
        if field.init
        and field.name not in arguments
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise ConfigError(f"{where}: {title}.{missing[0]}: must be given", section=title)
    try:
        return cls(**arguments)
    except ConfigError as error:
        sentence = error.message.removeprefix(f"{title}.")
        raise ConfigError(
            f"{where}: {title}.{sentence}", **{"section": title, **error.details}
        ) from None


def _where(name: str, lines: Lines, path: tuple[str, ...]) -> str:
    line = lines.get(path)
    return name if line is None else f"{name}:{line}"


def nearest(word: object, known: Iterable[str]) -> str:
    """Return a half sentence behind an unknown WORD: the nearest of those KNOWN, or all."""
    names = sorted(known)
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"


def _shown(value: object) -> str:
    kinds = {dict: "a mapping", list: "a list", type(None): "nothing"}
    return kinds.get(type(value)) or repr(value)[:80]


def parse_value(cls: type[Dataclass], title: str, key: str, text: str) -> Any:
    """Return what TEXT, YAML, is as a value of KEY in section TITLE, which belongs to CLS. Raises ConfigError.

    CLS has the key; what its values may be, the making of another one checks.
    """
    document, _ = _read_yaml(f"value: {text}", f"{title}.{key}")
    if document.keys() != {"value"}:
        raise ConfigError(f"{title}.{key}: one value is wanted, not several keys", key=key)
    return _typed(document.get("value"), typing.get_type_hints(cls)[key], f"{title}.{key}")


# ---------------------------------------------------------------- types


def _typed(value: object, kind: Any, where: str) -> Any:
    """Return VALUE as a KIND, or raise ConfigError."""
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return _optional(value, typing.get_args(kind), where)
    if origin is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise ConfigError(
                f"{where}: one of {', '.join(choices)} is wanted, not {_shown(value)}"
            )
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where}: a list is wanted, not {_shown(value)}")
        inner = typing.get_args(kind)[0]
        return tuple(_typed(item, inner, f"{where}[{at}]") for at, item in enumerate(value))
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: keys with values are wanted, not {_shown(value)}")
        inner = typing.get_args(kind)[1]
        return {key: _typed(item, inner, f"{where}.{key}") for key, item in value.items()}
    return _plain(value, kind, where)


def _optional(value: object, kinds: tuple[Any, ...], where: str) -> Any:
    rest = [kind for kind in kinds if kind is not type(None)]
    if value is None and len(rest) < len(kinds):
        return None
    return _typed(value, rest[0], where)


def _plain(value: object, kind: type, where: str) -> Any:
    readers: dict[type, Callable[[Any], Any]] = {
        float: float,
        Path: lambda text: Path(text).expanduser(),
    }
    accepted: dict[type, tuple[type, ...]] = {float: (int, float), Path: (str,)}
    if kind not in _WORDS:
        raise AssertionError(f"{where}: a field of type {kind} cannot stand in a configuration")
    fits = isinstance(value, accepted.get(kind, (kind,)))
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{where}: {_WORDS[kind]} is wanted, not {_shown(value)}")
    if isinstance(value, int) and abs(value) > _WHOLE_MAX:
        raise ConfigError(
            f"{where}: at most {_WHOLE_MAX} can be, not a number of {len(str(value))} digits",
            field=where,
            limit=_WHOLE_MAX,
        )
    return readers[kind](value) if kind in readers else value


# ---------------------------------------------------------------- YAML


def read_yaml(text: str, name: str) -> dict[str, Any]:
    """Return the mapping that TEXT, of the file NAME, is; raise ConfigError, for keys that stand twice too.

    The file holds secrets: the error shows nothing of it but keys.
    """
    return _read_yaml(text, name, secret=True)[0] if text else {}


def _read_yaml(text: str, name: str, *, secret: bool = False) -> tuple[dict[str, Any], Lines]:
    """Return the document and the line of each section and key. SECRET: errors show no values."""
    import yaml  # here, because a process without a configuration file need not pay for it

    try:
        root = yaml.compose(text, yaml.SafeLoader)
        if root is None:
            return {}, {}
        lines: dict[tuple[str, ...], int] = {}
        _collect_lines(root, (), lines, name)
        document = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = name if mark is None else f"{name}:{mark.line + 1}"
        problem = "put texts with other signs in quotes" if secret else error.problem
        raise ConfigError(f"{where}: not YAML: {problem}", file=name) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not YAML: {str(error).splitlines()[0]}", file=name) from None
    except RecursionError:
        raise ConfigError(f"{name}: its mappings and lists lie too deep", file=name) from None
    except _VALUE_ERRORS:
        raise ConfigError(
            f"{name}: a value looks like a date or a number and is none: put it in quotes",
            file=name,
        ) from None
    if not isinstance(document, dict):
        found = type(document).__name__ if secret else _shown(document)
        raise ConfigError(f"{name}: sections are wanted, not {found}", file=name)
    return document, lines


def _collect_lines(
    node: Any, path: tuple[str, ...], lines: dict[tuple[str, ...], int], name: str
) -> None:
    """Note the line of every key below NODE; refuse a key that stands twice, which YAML readers let pass."""
    import yaml

    if not isinstance(node, yaml.MappingNode) or len(path) == _DEPTH_MAX:
        return
    for key, value in node.value:
        place = (*path, str(key.value))
        line = key.start_mark.line + 1
        if place in lines:
            raise ConfigError(
                f"{name}:{line}: {'.'.join(place)}: given twice, first in line {lines[place]}",
                file=name,
            )
        lines[place] = line
        _collect_lines(value, place, lines, name)
