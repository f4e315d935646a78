"""Generates the clients for ordinary threads, client/sync/gen, from those for coroutines: `make sync`.

A method of the class for coroutines becomes a method of the same name, signature and docstring. There are three kinds:

    most         `return self._run(self._core.name(…))`: the method for coroutines runs on the clients' loop
    translated   the same statements without `async` and `await`
    by hand      `return self._name(…)`, which the base class in client/sync defines

The base class also has the constructor and other methods without a counterpart. `docs` has the few docstrings that must
differ.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from .source_tree import ROOT

FOLDER: Final = ROOT / "client" / "sync" / "gen"
#: The module of each name that only generated code uses.
_MODULES: Final = {"Future": "concurrent.futures", "Iterator": "collections.abc"}
_NAMES: Final = {"AsyncIterator": "Iterator", "__aiter__": "__iter__"}
_WORDS: Final = (
    (r"\ban `async with`", "a `with`"),
    (r"`async with", "`with"),
    (r"\bawait LOCAL of it\b", "call LOCAL with it"),
    (r"\bfrom coroutines\b", "from ordinary threads"),
    (r"\bfor coroutines\b", "for ordinary threads"),
    (r", and runs on this event loop\b", ""),
    (r"A cancelled `send` may still be delivered\. ", ""),
    (r"\bAsync([A-Z])", r"\1"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One generated class, in a file of its own."""

    name: str
    file: str
    sources: tuple[tuple[str, str], ...]
    """File and class that the methods come from."""
    base: tuple[str, str]
    """File in client/sync and class that the generated class derives from."""
    translated: frozenset[str] = frozenset()
    all_translated: bool = False
    by_hand: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()
    docs: dict[str, str] = field(default_factory=dict)
    """Docstrings that differ, by method; "" is the class."""


TARGETS: Final = (
    Target(
        name="Producer",
        file="producer.py",
        sources=(("client/producer.py", "AsyncProducer"),),
        base=("thread_producer", "ThreadProducer"),
        all_translated=True,
        by_hand=frozenset({"close"}),
        left_out=frozenset({"start"}),
        docs={
            "": (
                "Sends messages. Any number of threads may share one producer. Settings are those of"
                " ProducerConfig."
            ),
            "send_nowait": """Accept MESSAGE, or VALUE for a topic, and return the future of its receipt.

            If the buffer is full, it waits up to max_block_ms. The future cannot be cancelled. Its callbacks run in the
            client's own thread, so keep them short.
            """,
        },
    ),
    Target(
        name="PullConsumer",
        file="pull_consumer.py",
        sources=(("client/pull_consumer.py", "AsyncPullConsumer"),),
        base=("thread_consumer", "ThreadConsumer"),
        translated=frozenset({"poll", "messages", "__aiter__", "_check_signals", "metrics_text"}),
        by_hand=frozenset({"close"}),
        left_out=frozenset(
            {
                "start",
                "cursor",
                "take",
                "stop_waiting",
                "acknowledge_rebalance",
                "pending_revocation",
                "disconnect",
            }
        ),
        docs={
            "": (
                "Reads topics for a group, or without a group, from one thread. Settings are those of ConsumerConfig."
            ),
            "commit_async": (
                "Do the same as `commit_sync` without waiting. CALLBACK gets None or the error, in the client's"
                " own thread."
            ),
        },
    ),
    Target(
        name="PushConsumer",
        file="push_consumer.py",
        sources=(("client/push_consumer.py", "AsyncPushConsumer"),),
        base=("thread_push_consumer", "ThreadPushConsumer"),
        all_translated=True,
        by_hand=frozenset({"start", "wait", "metrics", "close"}),
        docs={
            "": """Calls a listener with messages for a group, in the background. Settings are those of PushConfig.

            Thread-safe.
            """,
            "wait": """Return when another thread closes the consumer, or in the main thread at SIGTERM or Ctrl-C.

            Raises the error if the group refused the consumer.
            """,
            "run": """Start, and run until the consumer is closed, or until SIGTERM or Ctrl-C. Then close it.

            It waits up to close_timeout_ms for running listeners. A second signal does not wait for them.
            """,
        },
    ),
    Target(
        name="Admin",
        file="admin.py",
        sources=(
            ("client/administration/admin.py", "AsyncAdmin"),
            ("client/administration/groups.py", "GroupAdmin"),
            ("client/administration/dead_letters.py", "DeadLetterAdmin"),
        ),
        base=("thread_admin", "ThreadAdmin"),
        by_hand=frozenset({"close"}),
        docs={"": "Administers the cluster of some name servers. Thread-safe."},
    ),
    Target(
        name="Transaction",
        file="transaction.py",
        sources=(("client/producing/transaction.py", "AsyncTransaction"),),
        base=("thread_block", "ThreadBlock[AsyncTransaction]"),
        left_out=frozenset({"begin", "finish"}),
    ),
    Target(
        name="AtomicCommit",
        file="atomic_commit.py",
        sources=(("client/producing/atomic_commit.py", "AsyncAtomicCommit"),),
        base=("thread_block", "ThreadBlock[AsyncAtomicCommit]"),
        left_out=frozenset({"begin", "finish"}),
    ),
)
_FILES: Final = {f"Async{one.name}": (one.file, one.name) for one in TARGETS}


class Import(NamedTuple):
    """Where a name comes from, relative to the generated files."""

    module: str
    name: str
    for_types: bool


def text_of(target: Target) -> str:
    """Return the text of the file of TARGET."""
    trees = {file: ast.parse((ROOT / file).read_text("utf-8")) for file, _ in target.sources}
    imports: dict[str, Import] = {}
    methods: list[ast.stmt] = []
    doc = ""
    for file, name in target.sources:
        imports = dict(_imports_of(trees[file], file)) | imports
        source = _class_of(trees[file], name)
        doc = doc or ast.get_docstring(source, clean=False) or ""
        methods += _methods(target, source)
    imports |= {name: Import(module, name, False) for name, module in _MODULES.items()}
    body = [ast.Expr(ast.Constant(_doc(target, "", doc))), *methods]
    base_file, base = target.base
    imports[base.partition("[")[0]] = Import(f"..{base_file}", base.partition("[")[0], False)
    bases = [ast.parse(base, mode="eval").body]
    made = ast.ClassDef(target.name, bases, [], body, [])
    text = ast.unparse(ast.fix_missing_locations(made))
    # Arguments of an overloaded method do not fit one of the overloads.
    text = re.sub(
        r"(self\._core\.\w+\([^\n]*\*\*parts\))$", r"\1  # type: ignore[arg-type]", text, flags=re.M
    )
    used = {node.id for node in ast.walk(made) if isinstance(node, ast.Name)}
    header = f'"""`{target.name}`, generated from {target.sources[0][0]} by `make sync`. Edit that file."""'
    return _formatted("\n\n".join([header, *_import_lines(imports, used), text]) + "\n")


def _class_of(tree: ast.Module, name: str) -> ast.ClassDef:
    return next(one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name)


def _imports_of(tree: ast.Module, file: str) -> Iterator[tuple[str, Import]]:
    """Yield the names that the file at FILE imports or defines, as the generated files import them."""
    package = file.split("/")[:-1]
    own = "...." + ".".join([*package, Path(file).stem])
    for statement in tree.body:
        is_guard = isinstance(statement, ast.If) and ast.unparse(statement.test) == "TYPE_CHECKING"
        for one in statement.body if isinstance(statement, ast.If) and is_guard else [statement]:
            if isinstance(one, ast.ImportFrom):
                above = package[: len(package) - one.level + 1]
                module = one.module or ""
                if one.level:
                    module = "...." + ".".join([*above, *module.split(".")] if module else above)
                for alias in one.names:
                    name = alias.asname or alias.name
                    yield name, Import(module, alias.name, is_guard)
            elif isinstance(one, ast.Assign | ast.AnnAssign):
                target = one.targets[0] if isinstance(one, ast.Assign) else one.target
                yield ast.unparse(target), Import(own, ast.unparse(target), False)
            elif isinstance(one, ast.ClassDef | ast.FunctionDef):
                yield one.name, Import(own, one.name, False)
    for name, (there, made) in _FILES.items():
        yield made, Import(f".{Path(there).stem}", made, name in _guarded(tree))


def _guarded(tree: ast.Module) -> set[str]:
    """Return the names that are imported for type checkers only."""
    return {
        alias.name
        for one in tree.body
        if isinstance(one, ast.If)
        for inner in one.body
        if isinstance(inner, ast.ImportFrom)
        for alias in inner.names
    }


def _import_lines(imports: dict[str, Import], used: set[str]) -> Iterator[str]:
    wanted = {name: imports[name] for name in sorted(used & imports.keys())}
    groups = [
        [_import_line(name, one) for name, one in wanted.items() if one.for_types is for_types]
        for for_types in (False, True)
    ]
    yield "from __future__ import annotations"
    if groups[1]:
        groups[0].append("from typing import TYPE_CHECKING")
    yield "\n".join(groups[0])
    if groups[1]:
        yield "if TYPE_CHECKING:\n" + "\n".join(f"    {line}" for line in groups[1])


def _import_line(name: str, one: Import) -> str:
    # `....client.queue` from client/sync/gen is `...queue`; `....proto.x` stays.
    module = re.sub(r"^\.{4}client(?:\.|$)", "...", one.module)
    return f"from {module} import {one.name}" + ("" if name == one.name else f" as {name}")


def _methods(target: Target, source: ast.ClassDef) -> Iterator[ast.stmt]:
    for one in source.body:
        if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_private = one.name.startswith("_") and one.name not in target.translated
        if not is_private and one.name not in target.left_out:
            yield _method(target, one)


def _method(target: Target, source: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    doc = ast.get_docstring(source, clean=False)
    statements = source.body[1:] if doc is not None else source.body
    is_overload = any(ast.unparse(one) == "overload" for one in source.decorator_list)
    if source.name in target.by_hand:
        statements = [_returned(_call(f"self._{source.name}", source))]
    elif not is_overload and not target.all_translated and source.name not in target.translated:
        statements = [_returned(_on_core(source))]
    body = [ast.Expr(ast.Constant(_doc(target, source.name, doc)))] if doc is not None else []
    copy = type(source)(**{name: getattr(source, name) for name in source._fields})
    copy.body = [*body, *statements]
    made = _WithoutAwait().visit(copy)
    assert isinstance(made, ast.stmt)
    return made


def _returned(value: ast.expr) -> ast.stmt:
    return ast.Return(value)


def _on_core(source: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr:
    """Return the call of the method for coroutines; what is a coroutine runs on the loop."""
    if any(ast.unparse(one) == "property" for one in source.decorator_list):
        return ast.parse(f"self._core.{source.name}", mode="eval").body
    call = _call(f"self._core.{source.name}", source)
    if isinstance(source, ast.FunctionDef):
        return call
    return ast.Call(ast.parse("self._run", mode="eval").body, [call], [])


def _call(function: str, source: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.expr:
    """Return a call of FUNCTION with the parameters of SOURCE."""
    of = source.args
    given = [one.arg for one in (*of.posonlyargs, *of.args)][1:]
    given += [f"{one.arg}={one.arg}" for one in of.kwonlyargs]
    if of.kwarg is not None:
        given.append(f"**{of.kwarg.arg}")
    return ast.parse(f"{function}({', '.join(given)})", mode="eval").body


def _doc(target: Target, method: str, doc: str) -> str:
    """Return the docstring DOC of METHOD as it is for ordinary threads."""
    if method in target.docs:
        indent = "    " if not method else "        "
        first, *rest = target.docs[method].split("\n")
        return "\n".join(
            [first, *(f"{indent if line else ''}{line}" for line in map(str.strip, rest))]
        )
    for words, others in _WORDS:
        doc = re.sub(words, others, doc)
    return doc


class _WithoutAwait(ast.NodeTransformer):
    """Makes a method for ordinary threads from one for coroutines."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        made = ast.FunctionDef(**{name: getattr(node, name) for name in node._fields})
        return self.visit(made)  # type: ignore[no-any-return]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = _NAMES.get(node.name, node.name)
        return self.generic_visit(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> ast.AST:
        return self.generic_visit(ast.With(node.items, node.body))

    def visit_Await(self, node: ast.Await) -> ast.AST:
        return self.visit(node.value)  # type: ignore[no-any-return]

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if ast.unparse(node.value) == "Awaitable":
            return self.visit(node.slice)  # type: ignore[no-any-return]
        return self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if ast.unparse(node) == "asyncio.Future":
            return ast.Name("Future")
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        made = _FILES[node.id][1] if node.id in _FILES else _NAMES.get(node.id, node.id)
        return ast.Name(made, node.ctx)


def _formatted(text: str) -> str:
    """Return TEXT as ruff formats it."""
    ruff = str(Path(sys.executable).with_name("ruff"))
    name = ["--stdin-filename", str(FOLDER / "generated.py"), "-"]
    for command in (["check", "--quiet", "--fix", "--select", "I"], ["format", "--quiet"]):
        text = subprocess.run(
            [ruff, *command, *name],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    return text


def main() -> None:
    """Write the generated files."""
    for target in TARGETS:
        (FOLDER / target.file).write_text(text_of(target), encoding="utf-8")


if __name__ == "__main__":
    main()
