"""Measures the structure of the code. `structure.toml` has a limit and a goal for each figure.

    make structure                      print each figure with its limit and its goal, and each private word
    make structure FILES="a.py b.md"    print only the private words in these files

Most figures come from the syntax of the sources. Two come from a run: the functions on a call path (call_paths.py) and
the ways to persist state (persistence.py).
"""

from __future__ import annotations

import ast
import gc
import inspect
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from . import call_paths, persistence
from .private_words import count_in, in_documents, replacements
from .source_tree import (
    CODE_FOLDERS,
    all_nodes,
    code_files,
    name_of,
    relative_imports,
    string_statements,
)

LIMITS: Final = Path(__file__).with_name("structure.toml")
#: The file that may hold lists of hooks: all objects get it when they are created.
EVENTS_FILE: Final = "broker/events.py"
_BANNER: Final = re.compile(r"[ \t]*# ?-{4,}")


class Set(NamedTuple):
    """An attribute of another object that is set, or a hook that is appended to it."""

    line: int
    attribute: str
    through_other: bool
    """The target is `a.b.c`: an attribute of what another object has."""
    value: str | None
    """The name that is set, "" for a lambda or a partial; None for any other value."""


@dataclass(frozen=True, slots=True)
class Source:
    """What was measured in one file."""

    path: Path
    code_lines: int
    lines: int
    banners: int
    docstring_words: int
    classes: list[str]
    functions: dict[str, int] = field(default_factory=dict)
    """The length of each function in lines, by line and name."""
    callables: set[str] = field(default_factory=set)
    """The names of its functions except properties."""
    imports: list[Path] = field(default_factory=list)
    sets: list[Set] = field(default_factory=list)
    hooks: list[Set] = field(default_factory=list)
    words: Counter[str] = field(default_factory=Counter)

    @property
    def package(self) -> str:
        return name_of(self.path.parent)


@cache
def sources() -> list[Source]:
    """Return the figures of each file of the product."""
    gc.disable()  # It would scan millions of nodes in vain: trees have no cycles.
    try:
        return [_measured(path) for path in code_files()]
    finally:
        gc.enable()


def measure(path: Path, text: str) -> Source:
    """Return the figures of the file at PATH, which contains TEXT."""
    tree = ast.parse(text)
    nodes = all_nodes(tree)
    lines = text.splitlines()
    statements = string_statements(nodes)
    found = Source(
        path=path,
        code_lines=len(_code_lines(lines, statements)),
        lines=len(lines),
        banners=sum(1 for line in lines if _BANNER.match(line)),
        docstring_words=words_of(ast.get_docstring(tree) or ""),
        classes=[node.name for node in tree.body if isinstance(node, ast.ClassDef)],
        imports=relative_imports(path, nodes),
        words=count_in(_prose(nodes, lines)),
    )
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.functions[f"{node.lineno}:{node.name}"] = len(_span(node))
            if not any(_is_property(one) for one in node.decorator_list):
                found.callables.add(node.name)
        elif isinstance(node, ast.Assign):
            found.sets.extend(_set_on_others(node))
        elif isinstance(node, ast.Call):
            found.hooks.extend(_appended_to_others(node))
    return found


def _measured(path: Path) -> Source:
    return measure(path, path.read_text(encoding="utf-8"))


# What one file contains.


def _code_lines(lines: list[str], statements: list[ast.stmt]) -> set[int]:
    """Return the numbers of the lines that are code: no docstring, comment or blank line."""
    strings = {number for node in statements for number in _span(node)}
    return {
        number
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#") and number not in strings
    }


def _span(node: ast.stmt) -> range:
    assert node.end_lineno is not None
    return range(node.lineno, node.end_lineno + 1)


def words_of(docstring: str) -> int:
    """Return the number of words in DOCSTRING. Indented lines (formats, examples) and tables do not count."""
    lines = inspect.cleandoc(docstring).splitlines()
    return sum(len(line.split()) for line in lines if not line.startswith(("    ", "|")))


def _prose(nodes: Iterable[ast.AST], lines: list[str]) -> Iterator[str]:
    """Yield what people read in a file: comments, and strings of more than one word."""
    strings = defaultdict[int, list[tuple[int, int]]](list)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert node.end_lineno is not None
            assert node.end_col_offset is not None
            for number in range(node.lineno, node.end_lineno + 1):
                begin = node.col_offset if number == node.lineno else 0
                end = node.end_col_offset if number == node.end_lineno else 1 << 30
                strings[number].append((begin, end))
            if " " in node.value:
                yield node.value
    comments = []
    for number, line in enumerate(lines, 1):
        if "#" in line:
            comments.append(_comment(line.encode(), strings.get(number, [])))
        elif comments:
            yield " ".join(comments)  # Words of a phrase may be on two lines.
            comments = []
    yield " ".join(comments)


def _comment(line: bytes, strings: list[tuple[int, int]]) -> str:
    """Return the comment in LINE, in which STRINGS are at these columns."""
    at = line.find(b"#")
    while at >= 0 and any(begin <= at < end for begin, end in strings):
        at = line.find(b"#", at + 1)
    return line[at:].decode().lstrip("#: ") if at >= 0 else ""


def _set_on_others(node: ast.Assign) -> Iterator[Set]:
    for target in node.targets:
        for one in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(one, ast.Attribute) and not _is_self(one.value):
                through = isinstance(one.value, ast.Attribute)
                yield Set(node.lineno, one.attr, through, _function_name(node.value))


def _appended_to_others(node: ast.Call) -> Iterator[Set]:
    """Yield NODE if it is `other.list.append(value)`."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in ("append", "add"):
        return
    to = node.func.value
    if isinstance(to, ast.Attribute) and not _is_self(to.value) and len(node.args) == 1:
        yield Set(node.lineno, to.attr, False, _function_name(node.args[0]))


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def _function_name(value: ast.expr) -> str | None:
    if isinstance(value, ast.Attribute):
        return value.attr
    if isinstance(value, ast.Name):
        return value.id
    is_partial = (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id == "partial"
    )
    return "" if is_partial or isinstance(value, ast.Lambda) else None


def _is_property(decorator: ast.expr) -> bool:
    return ast.unparse(decorator).endswith(("property", ".setter"))


# What all files together contain.


def import_cycles() -> list[list[Path]]:
    """Return the groups of files that import each other, also through other files or for type checkers only."""
    graph = {one.path: [to for to in one.imports if to != one.path] for one in sources()}
    return [sorted(group) for group in strong_components(graph) if len(group) > 1]


def strong_components(graph: dict[Path, list[Path]]) -> Iterator[list[Path]]:
    """Yield the strongly connected components of GRAPH (Tarjan's algorithm, without recursion)."""
    number: dict[Path, int] = {}
    lowest: dict[Path, int] = {}
    stack: list[Path] = []
    on_stack: set[Path] = set()
    for root in graph:
        if root in number:
            continue
        work = [(root, iter(graph[root]))]
        number[root] = lowest[root] = len(number)
        stack.append(root)
        on_stack.add(root)
        while work:
            path, rest = work[-1]
            for to in rest:
                if to not in number:
                    number[to] = lowest[to] = len(number)
                    stack.append(to)
                    on_stack.add(to)
                    work.append((to, iter(graph.get(to, ()))))
                    break
                if to in on_stack:
                    lowest[path] = min(lowest[path], number[to])
            else:
                work.pop()
                if work:
                    before = work[-1][0]
                    lowest[before] = min(lowest[before], lowest[path])
                if lowest[path] == number[path]:
                    at = stack.index(path)
                    group = stack[at:]
                    del stack[at:]
                    on_stack.difference_update(group)
                    yield group


def mutual_imports() -> list[tuple[str, str]]:
    """Return the pairs of sibling packages that import each other.

    A package and its own parent are no pair: files of `broker/` assemble what is in `broker/pop/`, whose files use
    `broker/config.py`.
    """
    imports: dict[str, set[str]] = defaultdict(set)
    for one in sources():
        imports[one.package] |= {name_of(path.parent) for path in one.imports}
    return sorted(
        (first, second)
        for first, others in imports.items()
        for second in others
        if first < second
        and not second.startswith(f"{first}/")
        and first in imports.get(second, ())
    )


def repeated_class_names() -> dict[str, int]:
    """Return how often each public class name is defined that more than one file defines."""
    counts = Counter(name for one in sources() for name in one.classes if not name.startswith("_"))
    return {name: count for name, count in counts.items() if count > 1}


def attributes_set_on_others() -> list[str]:
    """Return where an attribute of an attribute (`a.b.c = …`), or a function, is set on another object.

    A name is a function if the file defines one of this name, for attributes `on_…` if any file does.
    """
    return [
        f"{name_of(one.path)}:{each.line}"
        for one in sources()
        for each in one.sets
        if each.through_other or _is_function(each, one)
    ]


def appended_hooks() -> list[str]:
    """Return where a function is appended to a list of another object, outside of the events file."""
    return [
        f"{name_of(one.path)}:{each.line}"
        for one in sources()
        if name_of(one.path) != EVENTS_FILE
        for each in one.hooks
        if each.attribute.startswith("on_") or _is_function(each, one)
    ]


def _is_function(each: Set, source: Source) -> bool:
    if each.value is None:
        return False
    known = all_callables() if each.attribute.startswith("on_") else source.callables
    return each.value in known or each.value == ""


@cache
def all_callables() -> set[str]:
    return set().union(*(one.callables for one in sources()))


def private_words() -> Counter[str]:
    """Count the private words in code and documents."""
    return sum((one.words for one in sources()), in_documents())


def percentile_95(values: Iterable[int]) -> int:
    """Return the smallest value that at least 95 % of VALUES do not exceed."""
    ordered = sorted(values)
    return ordered[-(-len(ordered) * 95 // 100) - 1]


# The table.


@cache
def source_figures() -> dict[str, int]:
    """Return the figures of the sources."""
    docstrings = [one.docstring_words for one in sources()]
    functions = [length for one in sources() for length in one.functions.values()]
    return {
        "import cycles": len(import_cycles()),
        "attributes set on other objects": len(attributes_set_on_others()),
        "public class names defined twice": len(repeated_class_names()),
        "pairs of packages that import each other": len(mutual_imports()),
        "banners in code": sum(one.banners for one in sources()),
        "words in a module docstring, p95": percentile_95(docstrings),
        "words in a module docstring, max": max(docstrings),
        "hooks appended after construction": len(appended_hooks()),
        "lines in a function, p95": percentile_95(functions),
        "lines in a function, max": max(functions),
        "lines in a file, max": max(one.lines for one in sources()),
        "private words": private_words().total(),
        "code lines": sum(one.code_lines for one in sources()),
    }


@cache
def run_figures() -> dict[str, int]:
    """Return the figures that a run of a broker gives."""
    functions = {
        f"functions on the path of {name}": len(path.functions)
        for name, path in call_paths.measured().items()
    }
    ways = {"ways to persist state next to the log": len(persistence.measured().ways)}
    return functions | ways


class Limit(NamedTuple):
    """What structure.toml says of a figure."""

    limit: int
    goal: int


@cache
def limits() -> dict[str, Limit]:
    table = tomllib.loads(LIMITS.read_text(encoding="utf-8"))
    return {name: Limit(**row) for name, row in table.items()}


def package_sizes() -> dict[str, Counter[str]]:
    """Return the lines of each package by folder. Files in the package itself have the folder ""."""
    found = {package: Counter[str]() for package in CODE_FOLDERS}
    for one in sources():
        package, *rest = name_of(one.path).split("/")
        if rest:
            found[package][rest[0] if len(rest) > 1 else ""] += one.lines
    return found


def package_imports() -> Counter[tuple[str, str]]:
    """Return how many pairs of files there are of which the first imports the second, by their packages."""
    found = Counter[tuple[str, str]]()
    for one in sources():
        above = name_of(one.path).split("/")[0]
        for path in one.imports:
            below = name_of(path).split("/")[0]
            if above != below and {above, below} <= set(CODE_FOLDERS):
                found[above, below] += 1
    return found


def main(files: list[str]) -> None:
    """Print the table and the private words, or only the private words in FILES."""
    lines = _words_in(files) if files else [*_table(), "", *_words(private_words())]
    print("\n".join(lines))  # noqa: T201


def _table() -> list[str]:
    rows = [("metric", "value", "limit", "goal")]
    for name, value in (source_figures() | run_figures()).items():
        limit = limits()[name]
        rows.append((name, f"{value:,}", f"{limit.limit:,}", f"{limit.goal:,}"))
    return [f"{name:<48}{value:>9}{limit:>9}{goal:>9}" for name, value, limit, goal in rows]


def _words(counts: Counter[str]) -> list[str]:
    lines = [f"{'private word':<58}{'count':>8}  write instead"]
    for word, count in counts.most_common():
        lines.append(f"{word:.57}".ljust(58) + f"{count:>8,}  {replacements()[word]}")
    return lines


def _words_in(files: list[str]) -> list[str]:
    found: list[str] = []
    for name in files:
        text = Path(name).read_text(encoding="utf-8")
        is_code = name.endswith(".py")
        counts = measure(Path(name).resolve(), text).words if is_code else count_in([text])
        found += [name, *_words(counts), ""]
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
