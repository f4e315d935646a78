"""Rules that no linter knows. Each failure says what to do instead. test_structure.py has the limits of size."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from .source_tree import (
    ROOT,
    code_files,
    files_of_tests,
    forget_trees,
    imported_modules,
    name_of,
    nodes_of,
    text_files,
    tree_of,
)

CLOCK = "proto/clock.py"
#: Measuring needs the real time.
MEASURING = ("tools/bench/", "tools/demo/", "tools/size.py")
#: A probe of one blocking socket: it has no loop, and a Clock would have it import asyncio each time.
PROBE = "tools/health.py"

#: Waits for other threads and processes, whose state is no event.
WAITING = "tests/waiting.py"

_TIME_OF_DAY = {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime"}
_STOPWATCHES = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"}


@pytest.fixture(scope="module", autouse=True)
def trees() -> Iterator[None]:
    yield
    forget_trees()


@cache
def uses_of_time(path: Path) -> list[tuple[int, str]]:
    """Return (line, name) for each use of the module `time`, and of datetime's present."""
    names: dict[str, str] = {}
    found: list[tuple[int, str]] = []
    for node in nodes_of(path):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "time":
                found.append((node.lineno, node.attr))
            elif node.attr in ("now", "utcnow", "today") and node.value.id in ("datetime", "date"):
                found.append((node.lineno, "time"))
        elif isinstance(node, ast.Name) and node.id in names:
            found.append((node.lineno, names[node.id]))
    return found


def test_only_the_clock_reads_the_time_of_day() -> None:
    found = [
        f"{name_of(path)}:{line}: time.{name}"
        for path in code_files()
        for line, name in uses_of_time(path)
        if name in _TIME_OF_DAY and name_of(path) != CLOCK
    ]
    assert found == [], "take `now_ms` or a Clock as an argument"


def test_only_measurements_read_a_stopwatch() -> None:
    found = [
        f"{name_of(path)}:{line}: time.{name}"
        for path in code_files()
        for line, name in uses_of_time(path)
        if name in _STOPWATCHES and not name_of(path).startswith((CLOCK, PROBE, *MEASURING))
    ]
    assert found == [], "take a Clock as an argument; deadlines of a loop use `loop.time()`"


def test_nothing_sleeps_on_a_thread() -> None:
    found = [
        f"{name_of(path)}:{line}"
        for path in [*code_files(), *files_of_tests()]
        if "sleep" in path.read_text(encoding="utf-8")
        and not name_of(path).startswith((WAITING, *MEASURING))
        for line, name in uses_of_time(path)
        if name == "sleep"
    ]
    assert found == [], "wait for the event itself, or use `Clock.sleep_until`"


def test_no_task_is_left_for_later() -> None:
    marks = re.compile(r"\b(TODO|FIXME|HACK|XXX)\b")  # SCHEDULE_TOPIC_XXXX is one word
    found = [
        f"{name_of(path)}:{number}"
        for path in [*code_files(), *files_of_tests()]
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert found == [], "do it, or write an issue"


def test_only_the_command_prints() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in code_files()
        if not name_of(path).startswith("tools/")
        for node in nodes_of(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert found == [], "log an event, or return the text"


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    machine = re.compile(r"(?<![\w.])/(work|root|home/\w+|Users|tmp/[\w-]+-(src|build)|tmp/work)/")
    found = [
        f"{name_of(path)}:{number}: {line.strip()[:80]}"
        for path in text_files()
        if path != Path(__file__).resolve()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if machine.search(line)
    ]
    assert found == [], "derive the path from __file__, an option or an environment variable"


def test_every_module_says_what_it_is() -> None:
    found = [name_of(path) for path in code_files() if not ast.get_docstring(tree_of(path))]
    assert found == []


def test_the_package_imports_itself_relatively() -> None:
    found = [
        f"{name_of(path)}:{line}"
        for path in code_files()
        for line, module in imported_modules(path)
        if module.split(".")[0] == "pocketmq"
    ]
    assert found == [], "an absolute import can load a second copy of a module"


def test_http2_and_grpc_know_nothing_of_the_package() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in code_files()
        if name_of(path).startswith("proto/rpc/")
        for node in nodes_of(path)
        if isinstance(node, ast.ImportFrom) and node.level > 1
    ]
    assert found == [], "hand it in: proto/carriers.py does so"


#: Who may import grpc, which is an extra: the carrier of that name, and what measures beside it.
GRPC_USERS = ("proto/carrier_grpcio.py", "tools/bench/grpc_echo.py")


def test_handlers_do_not_know_what_carries_them() -> None:
    found = [
        f"{name_of(path)}:{line}"
        for path in code_files()
        for line, module in imported_modules(path)
        if module.split(".")[0] == "grpc" and not name_of(path).startswith(GRPC_USERS)
    ]
    assert found == [], "use proto/rpc.py"


def test_code_that_catches_everything_says_why() -> None:
    found = []
    for path in code_files():
        lines = path.read_text(encoding="utf-8").splitlines()
        for node in nodes_of(path):
            if isinstance(node, ast.ExceptHandler) and _swallows_everything(node):
                near = lines[node.lineno - 1 : node.body[0].lineno]
                if not any("#" in line for line in near):
                    found.append(f"{name_of(path)}:{node.lineno}")
    assert found == [], "catch narrowly, or give the reason in a comment"


def _swallows_everything(node: ast.ExceptHandler) -> bool:
    last = node.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
    return any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))
        for kind in kinds
    )


def test_the_rules_have_files_to_look_at() -> None:
    assert len(code_files()) > 40
    assert len(text_files()) > len(code_files())
    assert (ROOT / CLOCK).exists()


#: Tests that serve, and what they would serve with.
SERVING_TESTS = ("tests/integration/", "tests/interop/official/")
SETTINGS = {"BrokerConfig", "NameServerConfig"}


def test_tests_serve_on_the_carrier_that_was_asked_for() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in files_of_tests()
        if name_of(path).startswith(SERVING_TESTS)
        for node in nodes_of(path)
        if (isinstance(node, ast.ImportFrom) and node.module == "pocketmq.tools.server_process")
        or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in SETTINGS
        )
    ]
    assert found == [], "take settings and processes from tests/served.py: pytest --grpc"
