"""Give random and damaged bytes to a C core that is built with AddressSanitizer and UndefinedBehaviorSanitizer.

    python -m tests.proto.core_campaign --seconds 60 --seed 1

Batches are valid ones with bytes, fields and lengths changed: the core and the Python code must read the same, or
refuse the same. The other functions get numbers and columns of every kind: they may only raise. A bad access ends the
process with the sanitizer's report. It needs gcc with its sanitizers.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from pocketmq.proto import speedups

from ..repository.source_tree import ROOT
from .test_speedups import assert_same, encoded, outcome, pure_outcome

SANITIZERS: Final = ("libasan.so", "libubsan.so")
#: Names the sanitized core in the process that runs it.
_VARIABLE: Final = "POCKETMQ_SANITIZED_CORE"
_FLAGS: Final = (
    "-O1 -g -Wall -Wextra -Werror -fsanitize=address,undefined -fno-sanitize-recover=all"
)
_EDGES: Final = (0, 1, 2, 7, 88, 91, 92, 255, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000)
_WIDE_EDGES: Final = (-1, 1 << 32, (1 << 63) - 1, -(1 << 63), 1 << 62, *_EDGES)
_NAMES: Final = (
    b"UNIQ_KEY",
    b"KEYS",
    b"TAGS",
    b"DELAY",
    b"x",
    b"",
    b"TIMER_DELIVER_MS",
    b"\xff\xfe",
)
_VALUES: Final = (b"", b"a", b"a b  c", "ü😀".encode(), b"\xf0\x9f", b"\x80" * 9, b"k " * 40)


def runtimes() -> list[str]:
    """Return the libraries of gcc's sanitizers; empty if they are not there."""
    found = []
    for name in SANITIZERS:
        with suppress(OSError):
            words = ["gcc", f"-print-file-name={name}"]
            found.append(subprocess.check_output(words, text=True).strip())
    return found if all(os.path.isabs(name) for name in found) else []


def run_sanitized(seconds: float, seed: int) -> int:
    """Build the core with sanitizers, and run this program with it; return its exit code."""
    with tempfile.TemporaryDirectory(prefix="pocketmq-core-") as folder:
        core = Path(folder) / "_speedups.abi3.so"
        include = f"-I{sysconfig.get_paths()['include']}"
        words = ["gcc", *_FLAGS.split(), "-fPIC", "-shared", include, "proto/_speedups.c", "-o"]
        subprocess.run([*words, str(core)], cwd=ROOT, check=True)
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(runtimes()),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python itself leaves memory to the system at its end.
            "PYTHONMALLOC": "malloc",  # or it would not see the ends of small objects
            _VARIABLE: str(core),
        }
        program = [sys.executable, "-m", "tests.proto.core_campaign"]
        arguments = ["--seconds", str(seconds), "--seed", str(seed)]
        return subprocess.run([*program, *arguments], env=environment, check=False).returncode


def load(path: str) -> speedups.Core:
    """Let the core at PATH run, and return it."""
    spec = importlib.util.spec_from_file_location("pocketmq.proto._speedups", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    speedups.core = module
    core: speedups.Core = module
    return core


def _string(rng: random.Random) -> bytes:
    pairs = (rng.choice(_NAMES) + b"\x01" + rng.choice(_VALUES) for _ in range(rng.randrange(6)))
    return b"\x02".join(pairs) if rng.random() < 0.9 else rng.randbytes(rng.randrange(60))


def _damaged(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(4)):
        at = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                changed[at : at + 4] = (rng.choice(_EDGES) & 0xFFFFFFFF).to_bytes(4, "big")
            case 2:
                del changed[at : at + rng.randrange(1, 120)]
            case _:
                changed[at:at] = rng.randbytes(rng.randrange(1, 9))
        if not changed:
            break
    return bytes(changed)


def read_one(rng: random.Random) -> None:
    """Compare what the core and the Python code make of one batch."""
    count = rng.randrange(2, 9)
    messages = [(rng.randbytes(rng.randrange(1, 40)), _string(rng)) for _ in range(count)]
    data, sizes = encoded(messages, "T")
    data = _damaged(data, rng)
    if rng.random() < 0.3:
        sizes[rng.randrange(count)] += rng.choice((1, -1, 92, -92, 1 << 31, -(1 << 31), 1 << 62))
    if rng.random() < 0.2:
        sizes[-1] = len(data) - sum(sizes[:-1])
    assert_same(outcome(data, sizes, "T", 3), pure_outcome(data, sizes, "T", 3))


def _column(rng: random.Random) -> bytes:
    cells = [
        rng.choice((rng.randrange(200), rng.choice(_WIDE_EDGES))) for _ in range(rng.randrange(9))
    ]
    return array("q", [min(cell, (1 << 63) - 1) for cell in cells]).tobytes()[
        rng.choice((0, 0, 0, 1)) :
    ]


def _row(rng: random.Random, choices: tuple[Any, ...]) -> list[Any]:
    return [rng.choice(choices) for _ in range(rng.randrange(4))]


def _calls(core: speedups.Core, rng: random.Random) -> list[Callable[[], object]]:
    def number() -> int:
        return rng.choice((rng.randrange(200), rng.choice(_WIDE_EDGES)))

    def words() -> bytes:
        return rng.choice((b"", b"a", b"\x01T", bytes(88), bytes(89), bytes(40_000)))

    file: Any = bytearray(rng.randrange(300))
    columns = [_column(rng) for _ in range(3)]
    if rng.random() < 0.5:
        columns[1:] = [columns[0]] * 2
    hashes, rows, starts = columns
    rows_of_bytes = [_row(rng, (b"", b"a", bytes(32_700), 7)) for _ in range(3)]
    bodies, strings, keys = rows_of_bytes if rng.random() < 0.5 else [rows_of_bytes[0]] * 3
    flags = rng.choice((None, [rng.choice((0, 1, -1, 1 << 40)) for _ in bodies]))
    shared = words(), words(), words(), number() & 0xFFFFFFFF, words()
    return [
        lambda: core.stamp(file, starts, number(), number(), bytes(rng.choice((16, 16, 15)))),
        lambda: core.queue_entries(starts, rows, rng.choice((None, hashes)), number()),
        lambda: core.index_entries(
            file, (number(), number()), number(), (hashes, rows), starts, number(), number()
        ),
        lambda: core.encode(
            shared, bodies, rng.choice((strings, b"x\x01y\x02")), rng.choice((None, keys)), flags
        ),
        lambda: core.scan(
            bytes(file),
            [number() for _ in range(rng.randrange(5))],
            (words(), rng.randrange(9), 0, number(), number()),
            (1, 2),
            (b"x",) * rng.randrange(20),
            number(),
        ),
    ]


def call_one(core: speedups.Core, rng: random.Random) -> None:
    """Call one function with arguments of every kind."""
    with suppress(ValueError, TypeError, OverflowError, MemoryError):
        rng.choice(_calls(core, rng))()


@click.command()
@click.option("--seconds", type=float, default=60)
@click.option("--seed", type=int, default=1)
def main(seconds: float, seed: int) -> None:
    """Run for SECONDS with the random numbers of SEED."""
    path = os.environ.get(_VARIABLE)
    if path is None:
        if not runtimes():
            raise click.ClickException("gcc, or a sanitizer of it, is not there")
        sys.exit(run_sanitized(seconds, seed))
    core, rng, rounds = load(path), random.Random(seed), 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        read_one(rng)
        for _ in range(20):
            call_one(core, rng)
        rounds += 1
    click.echo(json.dumps({"seed": seed, "batches": rounds, "calls": 20 * rounds}))


if __name__ == "__main__":
    main()
