"""The pages with generated blocks. A block is between two comments:

    <!-- generated: errors -->
    <!-- end of errors -->

What is outside of blocks is written by hand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final

from pocketmq.tools.settings import SECTIONS

from ..source_tree import ROOT
from . import commands, environment, error_classes, fields, http_api, json_output, server_settings

DOCS: Final = ROOT / "docs"
#: The blocks of each page, by name, and what makes each.
PAGES: Final[Mapping[str, Mapping[str, Callable[[], str]]]] = {
    "settings.md": {title: server_settings.block(title) for title in SECTIONS},
    "client-settings.md": {
        **{name: fields.settings_block(name) for name in fields.SETTINGS},
        **{name: fields.classes_block(name) for name in fields.CLASSES},
    },
    "cli.md": {
        "exit codes": commands.exit_codes,
        "connection options": commands.connection_options,
        **commands.sections(),
    },
    "errors.md": {"overview": error_classes.overview, "classes": error_classes.classes},
    "http-api.md": {"about": http_api.about, "calls": http_api.calls},
    "json-output.md": {"verbs": json_output.verbs, "fields": json_output.fields},
    "environment.md": {"variables": environment.variables},
}


def updated(page: str, text: str) -> str:
    """Return TEXT of PAGE with its blocks as they are to be. Raises ValueError if one is missing."""
    for name, make in PAGES[page].items():
        begin, end = f"<!-- generated: {name} -->\n", f"<!-- end of {name} -->\n"
        head, found, rest = text.partition(begin)
        _, closed, tail = rest.partition(end)
        if not found or not closed:
            raise ValueError(f"docs/{page} has no block {name!r}: write {begin}{end}")
        text = f"{head}{begin}\n{make().strip()}\n\n{end}{tail}"
    return text


def blocks_in(text: str) -> list[str]:
    """Return the names of the generated blocks in TEXT."""
    return re.findall(r"<!-- generated: (.+) -->", text)
