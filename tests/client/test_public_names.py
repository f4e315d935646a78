"""The names of `pocketmq.client`: what type checkers see, what is announced and what is found are the same."""

from __future__ import annotations

import ast
from pathlib import Path

from pocketmq import client
from pocketmq.proto import errors


def _seen_by_type_checkers() -> dict[str, str]:
    """Return where the names are that the package imports for type checkers alone."""
    assert client.__file__ is not None
    tree = ast.parse(Path(client.__file__).read_text(encoding="utf-8"))
    return {
        alias.name: node.module
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }


def test_type_checkers_see_what_is_found_where_it_is() -> None:
    assert _seen_by_type_checkers() == client._MODULES


def test_what_is_announced_is_found() -> None:
    assert sorted(client.__all__) == sorted([*client._MODULES, *errors.__all__])
    assert len(set(client.__all__)) == len(client.__all__)
    for name in client._MODULES:
        found = getattr(client, name)
        home = f"{client.__name__}.{client._MODULES[name]}"
        assert getattr(found, "__module__", home) in (home, "types", "typing"), name


def test_every_error_is_announced() -> None:
    assert sorted(errors.__all__) == sorted(errors.BY_NAME)
    assert [getattr(client, name) for name in errors.BY_NAME] == [*errors.BY_NAME.values()]
