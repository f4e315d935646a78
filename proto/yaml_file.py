"""YAML files: the mapping in a file, and the line of each of its keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .errors import ConfigError

#: Line of each key by its path, such as ("broker", "port"), counted from 1.
Lines = Mapping[tuple[str, ...], int]
_DEPTH_MAX: Final = 3  # a section, its key, a key of that mapping; an alias could be recursive
#: The errors of PyYAML for `2026-13-45`, `!!int x`, `!!bool x`, `!!timestamp x` and the like.
VALUE_ERRORS: Final = (ValueError, LookupError, AttributeError, ArithmeticError)


def shown(value: object) -> str:
    kinds = {dict: "a mapping", list: "a list", type(None): "nothing"}
    return kinds.get(type(value)) or repr(value)[:80]


def read_yaml(text: str, name: str) -> dict[str, Any]:
    """Return the mapping in TEXT, the content of the file NAME; raise ConfigError, also for duplicate keys.

    The file contains secrets: errors show nothing of it except keys.
    """
    return read_yaml_lines(text, name, secret=True)[0] if text else {}


def read_yaml_lines(text: str, name: str, *, secret: bool = False) -> tuple[dict[str, Any], Lines]:
    """Return the document and the line of each section and key. SECRET: errors show no values."""
    import yaml  # Here, because a process without a configuration file does not need it.

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
        problem = "put texts with special characters in quotes" if secret else error.problem
        raise ConfigError(f"{where}: not YAML: {problem}", file=name) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not YAML: {str(error).splitlines()[0]}", file=name) from None
    except RecursionError:
        raise ConfigError(f"{name}: mappings and lists are nested too deeply", file=name) from None
    except VALUE_ERRORS:
        raise ConfigError(
            f"{name}: a value looks like a date or a number but is invalid: put it in quotes",
            file=name,
        ) from None
    if not isinstance(document, dict):
        found = type(document).__name__ if secret else shown(document)
        raise ConfigError(f"{name}: must be sections, not {found}", file=name)
    return document, lines


def _collect_lines(
    node: Any, path: tuple[str, ...], lines: dict[tuple[str, ...], int], name: str
) -> None:
    """Note the line of each key below NODE; refuse duplicate keys, which YAML readers accept."""
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
