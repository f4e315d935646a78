"""What the command prints on standard error when it fails: what is wrong, and where the documentation explains it."""

from __future__ import annotations


def complaint(printed: str) -> str:
    """Return the only line of PRINTED that says what is wrong; at most one more says where it is explained."""
    first, *more = printed.splitlines()
    assert len(more) <= 1, printed
    assert all(line.startswith("See docs/errors.md#") for line in more), printed
    return first
