"""Configuration: the sections of one YAML file become frozen dataclasses.

A file is a mapping of sections. A section is a mapping of keys and belongs to one dataclass: its fields are the keys,
its defaults apply to missing keys.

    broker:
      port: 8081          # BrokerConfig.port

Each mistake is a ConfigError with file, line, section and key: an unknown section or key (with the nearest known name),
a duplicate key, a wrong type, and a value that `__post_init__` refuses. For a removed key, the error has the advice in
REMOVED_KEYS of the class. Sizes and durations are integers; the unit is the end of the key.

A field may have these types: bool, int, float, str, Path, Literal of strings, tuple[X, …], dict[str, X], or any of
them or None. Environment variables have no influence.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol, TypeVar, Union

from .errors import ConfigError
from .renamed import SETTINGS, VALUES
from .yaml_file import Lines, read_yaml_lines, shown


class Dataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]


Section = TypeVar("Section", bound=Dataclass)
#: The largest magnitude of an integer (milliseconds, bytes, counts): a float holds it exactly.
_WHOLE_MAX: Final = 2**53
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

    The value of a key that is not in the file comes from DEFAULTS (by section and key), or else from its dataclass.
    ORIGINS receives the file and line of each "section.key" in the file.
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
    """Do the same as `load_sections` for TEXT; errors call it NAME."""
    document, lines = read_yaml_lines(text, name) if text else ({}, {})
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
        raise ConfigError(f"{where}: {title}: must be keys with values, not {shown(values)}")
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
        arguments[key] = _value(key, value, hints[key], f"{where}: {title}.{key}")
    return _built(cls, arguments, name, title, lines)


def _built(
    cls: type[Section], arguments: dict[str, Any], name: str, title: str, lines: Lines
) -> Section:
    missing = [
        field.name
        for field in dataclasses.fields(cls)
        if field.init
        and field.name not in arguments
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        where = _where(name, lines, (title,))
        raise ConfigError(f"{where}: {title}.{missing[0]}: must be given", section=title)
    try:
        return cls(**arguments)
    except ConfigError as error:
        sentence = error.message.removeprefix(f"{title}.")
        where = _where(name, lines, _refused_path(title, sentence, lines))
        raise ConfigError(
            f"{where}: {title}.{sentence}", **{"section": title, **error.details}
        ) from None


def _refused_path(title: str, sentence: str, lines: Lines) -> tuple[str, ...]:
    """Return the path of the first key in the file that SENTENCE names; it begins with the refused key."""
    paths = ((title, word) for word in re.findall(r"\w+", sentence))
    return next((path for path in paths if path in lines), (title,))


def _where(name: str, lines: Lines, path: tuple[str, ...]) -> str:
    line = lines.get(path)
    return name if line is None else f"{name}:{line}"


def nearest(word: object, known: Iterable[str]) -> str:
    """Return a hint about an unknown WORD: its new name, the most similar one of KNOWN, or all of KNOWN."""
    names = sorted(known)
    section, dot, key = str(word).rpartition(".")
    if (now := f"{section}{dot}{SETTINGS.get(key)}") in names:
        return f"; it is now called {now!r}"
    close = difflib.get_close_matches(str(word), names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(names)}"


def parse_value(cls: type[Dataclass], title: str, key: str, text: str) -> Any:
    """Return the value of KEY in section TITLE (of class CLS) in TEXT, YAML. Raises ConfigError.

    CLS must have the key. The type is checked here, the range when the dataclass is created.
    """
    document, _ = read_yaml_lines(f"value: {text}", f"{title}.{key}")
    if document.keys() != {"value"}:
        raise ConfigError(f"{title}.{key}: must be one value, not several keys", key=key)
    return _value(key, document.get("value"), typing.get_type_hints(cls)[key], f"{title}.{key}")


def _value(key: str, value: object, kind: Any, where: str) -> Any:
    """Return VALUE of KEY as a KIND, or raise ConfigError. For a renamed value the error contains the new name."""
    now = VALUES.get(key, {}).get(value) if isinstance(value, str) else None
    if now is not None:
        raise ConfigError(f"{where}: {value!r} is now called {now!r}")
    return _typed(value, kind, where)


def _typed(value: object, kind: Any, where: str) -> Any:
    """Return VALUE as a KIND, or raise ConfigError."""
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return _optional(value, typing.get_args(kind), where)
    if origin is Literal:
        choices = typing.get_args(kind)
        if value not in choices:
            raise ConfigError(f"{where}: must be one of {', '.join(choices)}, not {shown(value)}")
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{where}: must be a list, not {shown(value)}")
        inner = typing.get_args(kind)[0]
        return tuple(_typed(item, inner, f"{where}[{at}]") for at, item in enumerate(value))
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: must be keys with values, not {shown(value)}")
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
        raise AssertionError(f"{where}: a configuration cannot have a field of type {kind}")
    fits = isinstance(value, accepted.get(kind, (kind,)))
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise ConfigError(f"{where}: must be {_WORDS[kind]}, not {shown(value)}")
    if isinstance(value, int) and abs(value) > _WHOLE_MAX:
        raise ConfigError(
            f"{where}: a number of {len(str(value))} digits, the limit is {_WHOLE_MAX}",
            field=where,
            limit=_WHOLE_MAX,
        )
    return readers[kind](value) if kind in readers else value
