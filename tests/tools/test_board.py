import io

import pytest
from rich.console import Console

from pocketmq.tools.demo import Board


@pytest.fixture
def shown() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def board(shown: io.StringIO) -> Board:
    return Board(Console(file=shown, width=120))


def test_a_claim_that_fails_is_shown_again_at_the_end(board: Board, shown: io.StringIO) -> None:
    board.check("water is wet", True)
    board.check("[fire] is cold", False)

    board.summary()

    assert board.failures == ["[fire] is cold"]
    assert "✓ water is wet" in shown.getvalue()
    assert "✗ [fire] is cold" in shown.getvalue()
    assert "1 of 2 checks passed" in shown.getvalue()
    assert "failed: [fire] is cold" in shown.getvalue()


def test_the_rate_of_a_bar_is_in_the_table(board: Board, shown: io.StringIO) -> None:
    with board.bar("count sheep", 10) as bar:
        bar.add(4)
        bar.add(6)

    board.summary()

    last = next(line for line in reversed(shown.getvalue().splitlines()) if "count sheep" in line)
    assert last.split()[2] == "10"
