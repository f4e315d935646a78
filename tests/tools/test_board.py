import io

import pytest
from rich.console import Console

from pocketmq.tools.demo.progress import Board


@pytest.fixture
def shown() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def board(shown: io.StringIO) -> Board:
    return Board(Console(file=shown, width=120), 2)


def test_a_claim_that_fails_is_shown_again_at_the_end(board: Board, shown: io.StringIO) -> None:
    board.check("water is wet", True)
    board.check("[fire] is cold", False)

    board.summary()

    assert board.failures == ["[fire] is cold"]
    assert "✓ water is wet" in shown.getvalue()
    assert "✗ [fire] is cold" in shown.getvalue()
    assert "1 of 2 checks passed" in shown.getvalue()
    assert "failed: [fire] is cold" in shown.getvalue()


def test_a_demo_that_stopped_says_where_and_how_much_was_not_tried(shown: io.StringIO) -> None:
    board = Board(Console(file=shown, width=120), 19)
    board.heading("Start")
    board.check("water is wet", True)
    board.heading("Send [again]")

    board.summary(stopped=True)

    assert 'stopped at "Send [again]": 1 of 19 checks passed' in shown.getvalue()


def test_the_rate_of_a_bar_is_in_the_table(board: Board, shown: io.StringIO) -> None:
    with board.bar("count sheep", 10) as bar:
        bar.add(4)
        bar.add(6)

    board.summary()

    last = next(line for line in reversed(shown.getvalue().splitlines()) if "count sheep" in line)
    assert last.split()[2] == "10"
