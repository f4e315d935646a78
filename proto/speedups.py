"""Which code runs the inner loops of a batch: the C core `_speedups.c`, or the Python code next to each caller.

The core is optional, and both do the same. Callers read `core` at each call, so that tests can set it to None.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Final, Literal, Protocol, TypeAlias, cast

#: If it is set, the Python code runs.
VARIABLE: Final = "POCKETMQ_PURE"
#: A core that was built from other sources may have other functions: it is not used.
_API: Final = 1

Kind: TypeAlias = Literal["pure", "core"]
#: Starts, sizes, smallest and largest size, key hashes, rows of the keys, tags codes (None: all are 0), whether a
#: property name contains a hint, and the place of the first property string. Columns are int64 in native order.
Scan: TypeAlias = tuple[bytes, bytes, int, int, bytes, bytes, bytes | None, bool, int, int]


class Core(Protocol):
    """The functions of the C core. They raise ValueError for columns that do not fit each other or the buffer."""

    def scan(
        self,
        data: bytes,
        sizes: Sequence[int],
        wanted: tuple[bytes, int, int, int, int],
        seeds: tuple[int, int],
        hints: tuple[bytes, ...],
        keys_max: int,
        /,
    ) -> Scan | None:
        """Read a batch from a client. None: a record is invalid or not standard, or there are too many keys.

        WANTED: topic field, queue, bits of sysFlag that are not standard, limits of a body and of a record.
        """

    def stamp(
        self, view: memoryview, starts: bytes, first: int, log_offset: int, stamped: bytes, /
    ) -> None:
        """Set the fields of the store in the records at STARTS of VIEW."""

    def queue_entries(
        self, starts: bytes, sizes: bytes, codes: bytes | None, log_offset: int, /
    ) -> bytes:
        """Return the entries of a consume queue."""
        ...

    def index_entries(
        self,
        file: memoryview,
        slots: tuple[int, int],
        number: int,
        keys: tuple[bytes, bytes],
        starts: bytes,
        log_offset: int,
        seconds: int,
        /,
    ) -> int:
        """Enter KEYS, hashes and rows, into an index file, from entry NUMBER on; return how many slots were empty.

        SLOTS: their position and their number.
        """
        ...

    def encode(
        self,
        shared: tuple[bytes, bytes, bytes, int, bytes],
        bodies: list[bytes],
        strings: bytes | list[bytes],
        keys: list[bytes] | None,
        flags: list[int] | None,
        /,
    ) -> tuple[bytes, list[int]] | None:
        """Return the records of a batch, and their sizes. None: a length does not fit its field.

        SHARED: head, topic field, start of the message ids, first counter, properties of the first record only.
        """


def _load() -> tuple[Core | None, str]:
    """Return the C core, or None and the reason."""
    if os.environ.get(VARIABLE):
        return None, f"{VARIABLE} is set"
    try:
        module = import_module("._speedups", __package__)
    except ImportError:
        return None, "the C core is not built"
    if getattr(module, "API", None) != _API:
        return None, "the C core was built from another version: install again"
    return cast(Core, module), ""


core, why_pure = _load()


def running() -> Kind:
    """Return which code runs."""
    return "pure" if core is None else "core"


def described() -> str:
    """Return which code runs, and why if it is the Python code."""
    return f"pure Python ({why_pure})" if core is None else "C core"
