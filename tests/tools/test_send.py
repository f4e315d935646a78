import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketmq.tools.send import lines


class Pipe:
    """Brings the PIECES one by one, as a pipe does."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    def read1(self, size: int, /) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


@pytest.mark.parametrize(
    ("pieces", "batches"),
    [
        ((), []),
        ((b"\n\n",), []),
        ((b"a\nb\n",), [[b"a", b"b"]]),
        ((b"a\nb",), [[b"a"], [b"b"]]),
        ((b"a", b"b\nc", b"\n"), [[b"ab"], [b"c"]]),
        ((b"a\r\n\r\nb\rc\r\n",), [[b"a", b"b\rc"]]),
        ((b"a\r",), [[b"a"]]),
    ],
)
def test_a_batch_is_what_stands_ready(
    pieces: tuple[bytes, ...], batches: list[list[bytes]]
) -> None:
    assert list(lines(Pipe(*pieces))) == batches


@given(st.binary(max_size=60), st.lists(st.integers(1, 7), max_size=60))
def test_no_way_of_cutting_changes_the_lines(data: bytes, sizes: list[int]) -> None:
    pieces, rest = [], data
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    cut = Pipe(*(piece for piece in [*pieces, rest] if piece))

    flat = [line for batch in lines(cut) for line in batch]

    assert flat == [
        line for line in (part.removesuffix(b"\r") for part in data.split(b"\n")) if line
    ]
