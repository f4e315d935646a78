"""docs/settings.md: every setting of servers, from the sample file and the classes of its sections."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable
from dataclasses import Field, fields, replace
from functools import cache
from typing import Any, Final

import yaml

from pocketmq.proto.carriers import GRPC_CHOICES
from pocketmq.tools.log_lines import LEVELS
from pocketmq.tools.settings import SECTIONS, load_settings, sample

from .limits import choices, number, number_limits, type_name
from .markdown import code, plain, sentence, table

_LINE: Final = re.compile(r"  (?P<key>\w+): (?P<value>.*?)\s+# (?P<meaning>.*)")
#: Of settings whose type is text, what they take.
_TEXTS: Final = {
    "path": "folder",
    "log_path": "folder",
    "listen": "host:port",
    "address": "host:port",
    "advertised_address": "host:port",
    "host": "address",
    "java_slaves_host": "address",
}
_CHOICES: Final = {
    "grpc": GRPC_CHOICES,
    "level": LEVELS,
    "metrics_names": ("with-units", "plain"),
}
_FILES: Final = ("_cert", "_key", "_ca", "_file", "users")


def block(title: str) -> Callable[[], str]:
    """Return what makes the table of section TITLE."""
    return lambda: _table_of(title)


def _table_of(title: str) -> str:
    cls, texts = SECTIONS[title], _sample_lines()[title]
    section = getattr(load_settings(None), title)
    hints = typing.get_type_hints(cls)
    rows = [
        (
            code(one.name),
            _default(one.name, texts[one.name]["value"]),
            _values(one, section, hints[one.name]),
            "live" if one.name in cls.LIVE else "restart",
            plain(sentence(texts[one.name]["meaning"])),
        )
        for one in fields(cls)
    ]
    return table(("Setting", "Default", "Values", "Change", "Meaning"), rows)


@cache
def _sample_lines() -> dict[str, dict[str, re.Match[str]]]:
    """Return the lines of the sample file by section and key."""
    found: dict[str, dict[str, re.Match[str]]] = {}
    section: dict[str, re.Match[str]] = {}
    for line in sample().splitlines():
        if line and not line.startswith(("#", " ")):
            section = found[line.rstrip(":")] = {}
        elif match := _LINE.fullmatch(line):
            section[match["key"]] = match
    return found


def _default(name: str, text: str) -> str:
    value = yaml.safe_load(text)
    if value in ("", [], {}):
        return "empty"
    if isinstance(value, int) and not isinstance(value, bool):
        return text if name.endswith("port") else number(value)
    return code(", ".join(value) if isinstance(value, list) else text.strip('"'))


def _values(one: Field[Any], section: Any, hint: Any) -> str:
    if one.name in _TEXTS:
        return _TEXTS[one.name]
    if one.name in _CHOICES:
        return ", ".join(map(code, _CHOICES[one.name]))
    if one.type == "int":
        return number_limits(lambda value: replace(section, **{one.name: value}))
    if one.type == "str" and one.name.endswith(_FILES):
        return "file"
    return choices(hint) or type_name(str(one.type))
