"""Pages for trouble: the runbook has each alert, and the errors that error-messages.md explains are in the code."""

from __future__ import annotations

import ast
import re

import yaml

from .source_tree import ROOT, code_files, nodes_of

#: So many words of an error's text, one after the other, are written in the code as they are.
_WORDS = 3


def headings(page: str, level: int) -> list[str]:
    """Return the headings of LEVEL of a page in docs/."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return re.findall(rf"^#{{{level}}} (.+)$", text, re.MULTILINE)


def test_the_runbook_has_a_section_for_each_alert() -> None:
    rules = yaml.safe_load((ROOT / "docker" / "alerts.yaml").read_text(encoding="utf-8"))
    alerts = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]

    assert headings("alert-runbook.md", 2) == alerts


def test_errors_that_the_page_explains_are_raised_somewhere() -> None:
    texts = "\n".join(
        node.value
        for path in code_files()
        for node in nodes_of(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    classes = (ROOT / "proto" / "errors.py").read_text(encoding="utf-8")

    explained = headings("error-messages.md", 2)
    unknown = []
    for heading in explained:
        words = heading.strip("`").split()
        pieces = (" ".join(words[at : at + _WORDS]) for at in range(len(words) - _WORDS + 1))
        if f"class {heading}(" not in classes and not any(piece in texts for piece in pieces):
            unknown.append(heading)

    assert len(explained) >= 20
    assert not unknown
