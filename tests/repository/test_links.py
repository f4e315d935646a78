"""Links between the documents lead somewhere: to a file of the repository, and to a heading in it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest

from .source_tree import ROOT, code_files, name_of, nodes_of

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,}).*?^ {0,3}\1`*~*[ ]*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(`+).+?\1")
#: [text](target "title"), and [name]: target
_LINK = re.compile(
    r"\]\(\s*<?([^)\s>]+)>?[^)]*\)|^ {0,3}\[[^\]]+\]:\s*<?(\S+?)>?(?:\s|$)", re.MULTILINE
)
_HEADING = re.compile(r"^ {0,3}#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$", re.MULTILINE)
_NAMED = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")


def documents() -> list[Path]:
    """Return what a reader of the repository reads."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def links_of(text: str) -> Iterator[str]:
    """Yield where the links of a document lead to that stays within the repository."""
    prose = _CODE.sub("", _FENCE.sub("", text))
    for match in _LINK.finditer(prose):
        target = match[1] or match[2]
        if not re.match(r"[a-z][a-z0-9+.-]*:|//", target, re.IGNORECASE):
            yield target


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a document, as GitHub makes them of its headings."""
    prose = _FENCE.sub("", text)
    anchors = set(_NAMED.findall(prose))
    times: dict[str, int] = {}
    for heading in _HEADING.findall(prose):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", words.strip().lower()).replace(" ", "-")
        count = times[slug] = times.get(slug, -1) + 1
        anchors.add(f"{slug}-{count}" if count else slug)
    return anchors


def dead_links(path: Path) -> list[str]:
    """Return the links of the document at PATH that lead nowhere."""
    found = []
    for link in links_of(path.read_text(encoding="utf-8")):
        file, _, anchor = unquote(link).partition("#")
        target = path.parent / file if file else path
        if not target.exists():
            found.append(f"{link}: there is no {file}")
        elif (
            anchor
            and target.suffix == ".md"
            and anchor not in anchors_of(target.read_text(encoding="utf-8"))
        ):
            found.append(f"{link}: {target.name} has no such heading")
    return found


@pytest.mark.parametrize("path", documents(), ids=name_of)
def test_every_link_leads_somewhere(path: Path) -> None:
    assert dead_links(path) == []


def test_there_are_links_to_follow() -> None:
    count = sum(1 for path in documents() for _ in links_of(path.read_text(encoding="utf-8")))

    assert count > 10


DOCUMENT = """
# The `one` thing: and more

See [here](other.md#it-is--there), [there](#the-one-thing-and-more), [again](#twice-1), [out](https://host/x.md),
[gone](gone.md), [lost](other.md#lost), [below](#nowhere), `[code](code.md)` and [a name][name].

## Twice
## Twice

```
[fenced](fenced.md)
# no heading
```

[name]: other.md#no-heading
"""
OTHER = """
## It is (…) there
"""


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text(OTHER, encoding="utf-8")
    document = tmp_path / "document.md"
    document.write_text(DOCUMENT, encoding="utf-8")

    assert dead_links(document) == [
        "gone.md: there is no gone.md",
        "other.md#lost: other.md has no such heading",
        "#nowhere: document.md has no such heading",
        "other.md#no-heading: other.md has no such heading",
    ]


ARCHITECTURE = ROOT / "docs" / "architecture.md"
#: A path within the package, with or without the folders in front: `service_v2/routes`, `store/disk.py`.
_PATH = re.compile(r"(?<![\w./<-])[a-z][a-z0-9_]*(?:/[a-z][a-z0-9_]*)+(?:/|\.py\b)?(?![\w*<-])")


def paths_named(text: str) -> list[Path]:
    """Return the files and folders of the package that TEXT names; raise AssertionError for one that is not there."""
    places = {path: f"/{name_of(path)}" for file in code_files() for path in (file, file.parent)}
    folders = {path.name for path in places if path.is_dir()}
    found = []
    for name in _PATH.findall(text):
        plain = f"/{name.removesuffix('.py').rstrip('/')}"
        if plain.split("/")[1] not in folders:
            continue
        fitting = [path for path, at in places.items() if at.removesuffix(".py").endswith(plain)]
        assert fitting, f"there is no {name}"
        found.append(min(fitting, key=lambda path: len(path.parts)))
    return found


def test_the_files_that_the_architecture_names_are_there() -> None:
    assert len(paths_named(ARCHITECTURE.read_text(encoding="utf-8"))) > 60


def test_a_file_that_is_not_there_is_found() -> None:
    assert paths_named("`store/disk.py` ─► pop/table, docs/x.md") == [
        ROOT / "store" / "disk.py",
        ROOT / "broker" / "pop" / "table.py",
    ]
    with pytest.raises(AssertionError, match="there is no broker/nowhere"):
        paths_named("broker/nowhere ─► pop/table")


#: A function or class, with its class in front or without: `GroupCommit.fail`.
_FUNCTION = re.compile(r"`([A-Za-z_]+(?:\.[a-z_]+)?)`")
_FILE = re.compile(r"`([a-z_0-9/]+\.py)`")
_CONTRIBUTING = ROOT / "CONTRIBUTING.md"


def test_the_ten_questions_lead_to_files_and_functions_that_are_there() -> None:
    text = _CONTRIBUTING.read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.split("## Find your way")[1].split("\n## ")[0].splitlines()
        if line.startswith("| ") and "?" in line
    ]

    assert len(rows) == 10
    for question, read, answer in rows:
        files = dict.fromkeys(_FILE.findall(f"{read} {answer}"))
        assert 0 < len(files) <= 3, question
        defined = {name for file in files for name in names_defined(ROOT / file)}
        named = _FUNCTION.findall(_FILE.sub("", answer))
        assert [name for name in named if name not in defined] == [], question


def names_defined(path: Path) -> Iterator[str]:
    """Yield the functions and classes of PATH, methods with their class in front and without."""
    for node in nodes_of(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for part in node.body:
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{node.name}.{part.name}"


#: Page, and what a sentence sends people there for.
_POINTERS = {"docs/exactly-once.md": "`Deduplicator`"}


def test_the_pages_that_code_and_errors_name_are_there_and_say_what_was_promised() -> None:
    named = {
        page
        for path in code_files()
        for page in re.findall(r"\bdocs/[\w/-]+\.md\b", path.read_text(encoding="utf-8"))
    }

    assert named >= _POINTERS.keys()
    assert [page for page in sorted(named) if not (ROOT / page).is_file()] == []
    for page, subject in _POINTERS.items():
        assert subject in (ROOT / page).read_text(encoding="utf-8")
