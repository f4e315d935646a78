"""The measure of the house: how many files a reader meets, counted in the sources and along the roads of calls.

    make house                    prints the table: each figure, and what house.toml lets it be; writes the roads into
                                  docs/architecture.md and draws docs/house.svg (picture.py), where they changed

Figures of the sources come from their syntax; those of a road are the distinct files of the package whose functions
ran (`sys.setprofile`) while one warm call went along it, client, broker and store in one process on a virtual clock. A
road is followed three times, and counts with the files that all runs had in common: what merely falls due does not.
"""

from __future__ import annotations

import ast
import asyncio
import shutil
import sys
import tempfile
import textwrap
import threading
import tomllib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pocketmq.broker.broker import Broker
from pocketmq.client import Message, Producer
from pocketmq.nameserver.nameserver import NameServer
from pocketmq.proto.clock import SystemClock, VirtualClock
from pocketmq.proto.gen import rocketmq_v2_pb2 as v2
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..integration.v2_caller import Caller
from ..integration.whole_broker import store_config
from ..served import broker_config, nameserver_config
from . import picture
from .source_tree import ROOT, code_files, imported_files, name_of, nodes_of, tree_of

LIMITS: Final = Path(__file__).with_name("house.toml")
#: A file with one importer is a part of it if it has fewer lines.
SMALL_LINES: Final = 80
#: What a road is followed for, once it is warm.
RUNS: Final = 3
#: Classes that are one idea on two sides, and may have one name.
TWO_SIDES: Final = {
    "Run": "messages of one queue that are stored together: the store's records, and the client's futures for them"
}
START_MS: Final = 1_700_000_000_000
TOPIC: Final = "T"

#: Calls by which a file takes bytes of a store apart, or puts them together.
_READERS: Final = {
    "Struct", "unpack", "unpack_from", "iter_unpack", "pack_into", "frombuffer", "dtype",
}  # fmt: skip
#: Where formats are that are not the store's: transports, what a program prints, the parser of SQL, and the system's.
_OTHER_FORMATS: Final = (
    "proto/http2", "proto/grpc", "proto/rpc", "proto/remoting/", "proto/services", "broker/", "client/", "tools/bench/",
    "tools/demo/", "store/system.py",
)  # fmt: skip
#: HTTP/2 and gRPC: what speaks them, and what servers and clients know of them.
_RPC: Final = (
    "proto/rpc/", "proto/carrier", "proto/services/",
    "proto/pages", "proto/connection_figures", "proto/listening",
)  # fmt: skip


# ---------------------------------------------------------------- the sources


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@cache
def importers() -> dict[Path, set[Path]]:
    """Return by whom each file is imported."""
    found: dict[Path, set[Path]] = defaultdict(set)
    for path in code_files():
        for imported in imported_files(path):
            found[imported].add(path)
    return found


def repeated_class_names() -> dict[str, int]:
    """Return how often each public class name that is not unique is defined."""
    counts = Counter(
        node.name
        for path in code_files()
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return {name: count for name, count in counts.items() if count > 1 and name not in TWO_SIDES}


def small_files_of_one_importer() -> list[Path]:
    return [
        path
        for path in code_files()
        if path.name != "__init__.py"
        and lines_of(path) < SMALL_LINES
        and len(importers()[path]) == 1
    ]


def share_of_imports() -> float:
    """Return how many of a hundred lines of code are import statements; a comment or docstring is no code."""
    imports = code = 0
    for path in code_files():
        of_code = _lines_of_code(path)
        code += len(of_code)
        for node in nodes_of(path):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += len(of_code.intersection(_span(node)))
    return 100 * imports / code


def _lines_of_code(path: Path) -> set[int]:
    text: set[int] = set()
    for node in nodes_of(path):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            text |= set(_span(node))
    lines = path.read_text(encoding="utf-8").splitlines()
    return {
        number
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith("#") and number not in text
    }


def _span(node: ast.stmt) -> range:
    assert node.end_lineno is not None
    return range(node.lineno, node.end_lineno + 1)


def import_cycles() -> list[list[Path]]:
    """Return the groups of files each of which imports, over others, all the rest; for type checkers as well."""
    graph = {path: [to for to in imported_files(path) if to != path] for path in code_files()}
    return [sorted(group) for group in _knots(graph) if len(group) > 1]


def _knots(graph: dict[Path, list[Path]]) -> Iterator[list[Path]]:
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


def hooks() -> list[str]:
    """Return where a function is put into an attribute of another object: what that does cannot be read there.

    A name counts as a function if the same file has one of this name, for an attribute `on_…` if any file has.
    """
    everywhere = {name for path in code_files() for name in _functions(path)}
    found = []
    for path in code_files():
        for line, target, value in _set_on_others(path):
            known = everywhere if target.attr.startswith("on_") else _functions(path)
            if _is_function(value, known):
                found.append(f"{name_of(path)}:{line}")
    return found


def attributes_set_through_others() -> list[str]:
    """Return where an attribute is set of what is another object's (`a.b.c = …`); what is added to does not count."""
    return [
        f"{name_of(path)}:{line}"
        for path in code_files()
        for line, target, _ in _set_on_others(path)
        if isinstance(target.value, ast.Attribute)
    ]


def _set_on_others(path: Path) -> Iterator[tuple[int, ast.Attribute, ast.expr]]:
    """Yield (line, target, value) where an attribute of another object than `self` is set."""
    for node in nodes_of(path):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for one in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(one, ast.Attribute) and not _is_self(one.value):
                        yield node.lineno, one, node.value


@cache
def _functions(path: Path) -> set[str]:
    """Return the names of the functions of PATH, but for those of properties."""
    return {
        node.name
        for node in nodes_of(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not any(
            ast.unparse(one).endswith(("property", ".setter")) for one in node.decorator_list
        )
    }


def _is_function(value: ast.expr, functions: set[str]) -> bool:
    if isinstance(value, ast.Attribute):
        return value.attr in functions
    if isinstance(value, ast.Name):
        return value.id in functions
    if isinstance(value, ast.Call):
        return isinstance(value.func, ast.Name) and value.func.id == "partial"
    return isinstance(value, ast.Lambda)


def _is_self(value: ast.expr) -> bool:
    return isinstance(value, ast.Name) and value.id in ("self", "cls")


def files_of_formats() -> list[Path]:
    """Return the files that take bytes of a store apart themselves, or put them together."""
    return [
        path
        for path in code_files()
        if not name_of(path).startswith(_OTHER_FORMATS)
        and any(
            isinstance(node, ast.Call)
            and _READERS & {getattr(node.func, "attr", ""), getattr(node.func, "id", "")}
            for node in nodes_of(path)
        )
    ]


def files_of_rpc() -> list[Path]:
    return [path for path in code_files() if name_of(path).startswith(_RPC)]


@cache
def of_sources() -> dict[str, float]:
    """Return the figures of the sources."""
    return {
        "product files": len(code_files()),
        "product lines": sum(map(lines_of, code_files())),
        "public class names defined twice or more": len(repeated_class_names()),
        "files with one importer and less than 80 lines": len(small_files_of_one_importer()),
        "import statements, % of code lines": round(share_of_imports(), 1),
        "import cycles of files": len(import_cycles()),
        "functions set as attributes of other objects": len(hooks()),
        "attributes set through another object": len(attributes_set_through_others()),
        "files that read or write the store's formats": len(files_of_formats()),
        "files of HTTP/2 and gRPC": len(files_of_rpc()),
    }


# ---------------------------------------------------------------- the roads


class Follower:
    """Notes whose functions run on this thread, and on those that begin while it `covers` them."""

    def __init__(self) -> None:
        #: In the order in which they came.
        self._seen: dict[str, None] | None = None
        self._runs: list[dict[str, None]] = []

    @contextmanager
    def following(self) -> Iterator[None]:
        self._seen = {}
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._runs.append(self._seen)
            self._seen = None

    @contextmanager
    def covering(self) -> Iterator[None]:
        threading.setprofile(self._note)
        try:
            yield
        finally:
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self._seen is not None:
            self._seen.setdefault(frame.f_code.co_filename)

    def files(self) -> list[Path]:
        """Return the files of the package that all runs had in common, in the order of the last."""
        names = {str(path): path for path in code_files()}
        common = set.intersection(*map(set, self._runs))
        return [names[name] for name in self._runs[-1] if name in common and name in names]


async def _road(
    act: Callable[[], Awaitable[Any]],
    before: Callable[[], Awaitable[Any]] | None = None,
    follower: Follower | None = None,
) -> list[Path]:
    """Return the files on the road of ACT once it is warm. What is done BEFORE it each time is not followed."""
    follower = follower or Follower()
    for run in range(2 + RUNS):
        if before is not None:
            await before()
        if run < 2:
            await act()
        else:
            with follower.following():
                await act()
    return follower.files()


async def roads(folder: Path) -> dict[str, list[Path]]:
    """Return the files on each road. The stores lie in FOLDER."""
    wall = SystemClock()
    names = NameServer.build(nameserver_config(port=0), clock=wall)
    await names.start()
    config = broker_config(port=0, nameservers=(names.address,))
    clock = VirtualClock(START_MS)
    broker = Broker.build(config, store_config(folder), disk=OsDisk(), clock=clock, wall=wall)
    await broker.start()
    try:
        assert await broker.registered(10)
        found = {"Producer.send": await _road_of_send(names.address)}
        found |= await _official_roads(broker.address)
        copies = iter(range(2 + RUNS))

        async def kill() -> None:
            shutil.copytree(folder / "store", folder / f"killed-{next(copies)}" / "store")

        opened = iter(range(2 + RUNS))

        async def reopen() -> None:
            killed = store_config(folder / f"killed-{next(opened)}")
            MessageStore.open(killed, disk=OsDisk(), now_ms=clock.now_ms).close()

        return found | {"opening a store after a kill": await _road(reopen, kill)}
    finally:
        await broker.stop()
        await names.stop()


async def _road_of_send(address: str) -> list[Path]:
    """Return the files on the road of a send, from a user's thread over the client's to the broker's and back."""
    loop = asyncio.get_running_loop()
    follower = Follower()
    with follower.covering(), ThreadPoolExecutor(1) as user:
        producer = await loop.run_in_executor(user, Producer, address)
        try:

            async def send() -> None:
                await loop.run_in_executor(user, producer.send, Message(TOPIC, b"body"))

            return await _road(send, follower=follower)
        finally:
            await loop.run_in_executor(user, producer.close)


async def _official_roads(address: str) -> dict[str, list[Path]]:
    """Return the files of the broker's thread on the roads of an official client, which asks from another."""
    client = Caller(address)
    lent: list[v2.Message] = []

    async def send() -> None:
        await asyncio.to_thread(client.send, b"body")

    async def receive() -> None:
        lent.extend(await asyncio.to_thread(client.receive))

    async def acknowledge() -> None:
        await asyncio.to_thread(client.acknowledge, lent.pop())

    async def lend() -> None:
        await send()
        await receive()

    try:
        await receive()  # Also what `Producer.send` left there.
        return {
            "SendMessage": await _road(send),
            "ReceiveMessage": await _road(receive, send),
            "AckMessage": await _road(acknowledge, lend),
        }
    finally:
        client.channel.close()


@cache
def files_of_roads() -> dict[str, list[Path]]:
    """Return the files on each road."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(roads(Path(folder)))


def of_roads() -> dict[str, float]:
    """Return the figures of the roads."""
    return {f"files on the road of {name}": len(files) for name, files in files_of_roads().items()}


# ---------------------------------------------------------------- the roads, in words

ARCHITECTURE: Final = ROOT / "docs" / "architecture.md"


def block_of(road: str, text: str) -> str:
    """Return what TEXT tells of ROAD between its marks."""
    begin, end = _marks(road)
    return text.split(begin)[1].split(end)[0]


def _marks(road: str) -> tuple[str, str]:
    return f"<!-- road: {road} -->\n", f"<!-- end of {road} -->\n"


def told_files(block: str) -> list[Path]:
    """Return the files that a block names: a folder, and what is passed in it."""
    found = []
    for line in block.splitlines():
        folder, *names = line.replace(",", " ").split()
        if folder.endswith("/"):
            found += [ROOT / folder / f"{name}.py" for name in names]
    return found


def telling(files: list[Path]) -> str:
    """Return the block that names FILES by folder, folders and files in the order of the road."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path in files:
        folders[f"{name_of(path.parent)}/"].append(path.stem)
    width = max(map(len, folders)) + 1
    lines = ["```"]
    for folder, names in folders.items():
        lines += textwrap.wrap(
            ", ".join(names),
            width=118,
            initial_indent=folder.ljust(width),
            subsequent_indent=folder.ljust(width),
            break_on_hyphens=False,
        )
    return "\n".join([*lines, "```", ""])


def write_down() -> None:
    """Write the roads into the architecture, and draw the picture; what is so already is left."""
    text = before = ARCHITECTURE.read_text(encoding="utf-8")
    for road, files in files_of_roads().items():
        if set(told_files(block_of(road, text))) != set(files):
            begin, end = _marks(road)
            head, rest = text.split(begin)
            text = f"{head}{begin}{telling(files)}{end}{rest.split(end)[1]}"
    if text != before:
        ARCHITECTURE.write_text(text, encoding="utf-8")
    picture.PICTURE.write_text(picture.drawn(), encoding="utf-8")


# ---------------------------------------------------------------- the table


def limits() -> dict[str, float]:
    """Return what each figure may be at most."""
    return tomllib.loads(LIMITS.read_text(encoding="utf-8"))


def main() -> None:
    """Print the table; write the roads and the picture."""
    allowed = limits()
    rows = [
        f"{figure:>8,}  {allowed[name]:>8,}  {name}"
        for name, figure in (of_sources() | of_roads()).items()
    ]
    print("\n".join(["   today   at most", *rows]))  # noqa: T201
    write_down()


if __name__ == "__main__":
    main()
