"""The files of this repository, for the tests that read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: The folders that are the package; generated code is left out of everything.
CODE_FOLDERS = ("broker", "client", "nameserver", "proto", "store", "tools")
_GENERATED = (ROOT / "proto" / "gen", ROOT / "client" / "sync" / "gen")


@cache
def code_files() -> list[Path]:
    """Return the modules of the package, without generated ones."""
    return [ROOT / "__init__.py", *_python(CODE_FOLDERS)]


def files_of_tests() -> list[Path]:
    return list(_python(("tests",)))


def _python(folders: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(folder in path.parents for folder in _GENERATED):
                yield path


def text_files() -> list[Path]:
    """Return everything that a person wrote: code, tests, documents, make and configuration files."""
    endings = {".py", ".md", ".toml", ".yaml", ".yml", ".proto", ".txt", ".json", ".sh"}
    folders = (*CODE_FOLDERS, "tests", "docs")
    found = [path for path in ROOT.iterdir() if path.suffix in endings]
    for folder in folders:
        found += [path for path in (ROOT / folder).rglob("*") if path.suffix in endings]
    return [ROOT / "Makefile", ROOT / ".ci" / "run", *found]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of the tree of PATH, parents before their children."""
    return all_nodes(tree_of(path))


def all_nodes(tree: ast.AST) -> list[ast.AST]:
    """Return TREE and all nodes below it, parents before their children, but no contexts (`ast.Load` and so on).

    Much faster than `ast.walk`.
    """
    found = [tree]
    for node in found:
        for name, value in node.__dict__.items():
            if isinstance(value, list):
                found += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and name != "ctx":
                found.append(value)
    return found


def string_statements(nodes: list[ast.AST]) -> list[ast.stmt]:
    """Return the statements that are a string: docstrings, and strings below attributes."""
    return [
        node
        for node in nodes
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]


@cache
def imported_modules(path: Path) -> list[tuple[int, str]]:
    """Return (line, absolute module) of every import in PATH that runs; not those for type checkers only."""
    idle: set[ast.AST] = set()
    found: list[tuple[int, str]] = []
    for node in nodes_of(path):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            idle.update(ast.walk(node))
        elif node in idle:
            continue
        elif isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.append((node.lineno, node.module))
    return found


def relative_imports(path: Path, nodes: list[ast.AST]) -> list[Path]:
    """Return the files of the package that PATH, which has these NODES, imports, also for type checkers only."""
    found: dict[Path, None] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level:
            start = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
            for alias in node.names:
                file = _module_file(start / alias.name) or _module_file(start)
                if file is not None:
                    found[file] = None
    return list(found)


@cache
def _module_file(place: Path) -> Path | None:
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return file if file.exists() else None


def forget_trees() -> None:
    """Free the parsed files: half a gibibyte, which Python's collector scans again and again."""
    for parsed in (tree_of, nodes_of, imported_modules):
        parsed.cache_clear()
