"""The command that installs an extra names PocketMQ as pip knows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pocketmq.proto import extras

from ..repository.source_tree import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("origin", "wanted"),
    [
        (None, "-e '{root}[spark]'"),
        ({}, "'pocketmq[spark]'"),
        ({"url": "file://{root}", "dir_info": {"editable": True}}, "-e '{root}[spark]'"),
        ({"url": "file://{root}", "dir_info": {}}, "'{root}[spark]'"),
        ({"url": "file:///no/longer/there", "dir_info": {}}, "'pocketmq[spark]'"),
        (
            {"url": "https://example.com/p.git", "vcs_info": {"vcs": "git", "commit_id": "ab"}},
            "'pocketmq[spark] @ git+https://example.com/p.git'",
        ),
        (
            {"url": "https://example.com/p.whl", "archive_info": {}},
            "'pocketmq[spark] @ https://example.com/p.whl'",
        ),
    ],
)
def test_an_extra_is_installed_from_where_pocketmq_came(
    origin: dict[str, Any] | None, wanted: str, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if origin:
        origin = {**origin, "url": origin["url"].format(root=checkout)}
    monkeypatch.setattr(extras, "_origin", lambda: origin)
    monkeypatch.setattr(extras, "_ROOT", checkout)
    assert extras.pip_install("spark") == f"pip install {wanted.format(root=checkout)}"


def test_several_extras_are_one_command() -> None:
    assert re.fullmatch(r"pip install .*\[spark,jre\]'", extras.pip_install("spark", "jre"))


def test_a_package_of_no_known_origin_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "_origin", lambda: None)
    monkeypatch.setattr(extras, "_ROOT", tmp_path)
    assert extras.pip_install("spark") == "pip install 'pocketmq[spark]'"


def test_no_source_and_no_document_says_a_name_that_no_index_has() -> None:
    """The changelog may: it says what was announced."""
    code = ("broker", "client", "nameserver", "proto", "store", "tools")
    folders = (*code, "docs", "examples", "docker", "helm", "systemd")
    texts = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    texts += ROOT.glob("*.md")
    said = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in texts
        if path.suffix in (".py", ".md", ".yaml", ".toml", ".html", ".service")
        and path.name != "CHANGELOG.md"
        if path != ROOT / "proto" / "extras.py"
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"pocketmq\[[a-z]|pip install pocketmq\b", line)
    ]
    assert said == []
