"""What is fuzzed: a decoder, what must hold for any bytes, and bytes to begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

#: Bytes that once found a fault, and others that reach much code, by target.
CORPUS: Final = Path(__file__).parent / "corpus"
Refusals: TypeAlias = type[Exception] | tuple[type[Exception], ...]

#: The result of a decoder that raised the error it documents.
REFUSED: Final = object()
#: Decoders that take a stream get it in pieces of these sizes, again and again.
_PIECES: Final = (1, 2, 3, 5, 8, 13, 64, 1_000)


class Target(NamedTuple):
    """CHECK raises any exception if a rule is broken for the bytes it gets; SEEDS returns valid bytes."""

    name: str
    check: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]

    def inputs(self) -> list[bytes]:
        """Return the bytes to begin with: those of SEEDS, and those of the corpus."""
        folder = CORPUS / self.name
        kept = [file.read_bytes() for file in sorted(folder.iterdir())] if folder.is_dir() else []
        return [*self.seeds(), *kept]


def pieces(data: bytes) -> Iterator[bytes]:
    """Yield DATA in small and large pieces."""
    at = turn = 0
    while at < len(data):
        size = _PIECES[turn % len(_PIECES)]
        yield data[at : at + size]
        at, turn = at + size, turn + 1


def result_of(refusals: Refusals, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return what FUNCTION returns for ARGUMENTS, or REFUSED if it raises one of REFUSALS."""
    try:
        return function(*arguments)
    except refusals:
        return REFUSED


def text_of(data: bytes) -> str:
    """Return DATA as a text that a peer could send: valid UTF-8."""
    return data.decode("utf-8", "replace")
