"""Settings that change while a server runs are read where they are used: nobody keeps a copy of one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pocketmq.broker.config import BROKER_SECTIONS
from pocketmq.broker.replication.config import ReplicationConfig
from pocketmq.tools.settings import SECTIONS

from .source_tree import ROOT, code_files, name_of, tree_of

LIVE = {key for cls in SECTIONS.values() for key in cls.LIVE}
#: What puts a server together, besides constructors: what these read, they read once.
BUILDERS = {
    "build",
    "assemble",
    "methods",
    "_clients",
    "_service_v2",
    "_serve",
    "_schedule",
    "producers_of",
}


def read_once(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of each live setting that a constructor or builder reads for itself, in no inner function."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and (
            function.name == "__init__" or function.name in BUILDERS
        ):
            waiting: list[ast.AST] = list(function.body)
            while waiting:
                node = waiting.pop()
                if isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                if isinstance(node, ast.Attribute) and node.attr in LIVE and _is_config(node.value):
                    yield node.lineno, node.attr
                waiting += ast.iter_child_nodes(node)


def _is_config(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
    return name.endswith(("config", "settings"))


@pytest.mark.parametrize("cls", SECTIONS.values(), ids=SECTIONS)
def test_what_is_live_is_a_setting(cls: Any) -> None:
    assert {one.name for one in fields(cls)} >= cls.LIVE


def test_every_section_but_that_of_replicas_has_live_settings() -> None:
    assert [cls for cls in SECTIONS.values() if not cls.LIVE] == [ReplicationConfig]


def test_every_section_is_served_at_a_port() -> None:
    assert {*BROKER_SECTIONS, "nameserver"} == SECTIONS.keys()


def test_no_part_keeps_a_copy_of_a_live_setting() -> None:
    servers = [
        path
        for path in code_files()
        if name_of(path).startswith(("broker/", "store/", "nameserver/"))
    ]
    found = [
        f"{name_of(path)}:{line} {key}"
        for path in servers
        for line, key in read_once(tree_of(path))
    ]
    assert found == []


def test_a_copy_would_be_found() -> None:
    source = "class A:\n def __init__(self, config):\n  self.limit = config.topics_max\n"
    assert list(read_once(ast.parse(source))) == [(3, "topics_max")]
    source = "class A:\n def __init__(self, config):\n  self.limit = lambda: config.topics_max\n"
    assert list(read_once(ast.parse(source))) == []


def test_the_documents_name_the_live_settings() -> None:
    text = Path(ROOT / "docs/settings.md").read_text("utf-8")
    missing = [
        f"{title}.{key}"
        for title, cls in SECTIONS.items()
        for key in cls.LIVE
        if f"`{key}`" not in text
    ]
    assert missing == []
