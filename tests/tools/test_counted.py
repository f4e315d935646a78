"""Numbers with their nouns."""

from __future__ import annotations

import pytest

from pocketmq.tools.counted import counted


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (0, "message", "0 messages"),
        (1, "message", "1 message"),
        (2_000, "message", "2,000 messages"),
        (1, "queue entry", "1 queue entry"),
        (2, "queue entry", "2 queue entries"),
        (2, "process", "2 processes"),
        (1, "process", "1 process"),
    ],
)
def test_only_one_is_singular(number: int, noun: str, text: str) -> None:
    assert counted(number, noun) == text
