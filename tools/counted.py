"""Numbers with their nouns: "1 message", "2,000 messages", "3 queue entries". Pure."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Return NUMBER with NOUN, in the plural unless it is one."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith(("ry", "ty")):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith('ss') else 's'}"
