"""Topics, groups, committed offsets and delay levels of two stores, compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...store.apache.config import JavaConfig


@dataclass(slots=True)
class TableDifference:
    """One table: names that only A has, or only B, and those whose values differ, with both values."""

    table: str
    only_a: list[str] = field(default_factory=list)
    only_b: list[str] = field(default_factory=list)
    changed: list[tuple[str, object, object]] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Is nothing different?"""
        return not (self.only_a or self.only_b or self.changed)

    def to_json(self, most: int) -> dict[str, Any]:
        """Return plain values, with at most MOST names of each kind."""
        return {
            "table": self.table,
            "onlyInA": {"count": len(self.only_a), "first": self.only_a[:most]},
            "onlyInB": {"count": len(self.only_b), "first": self.only_b[:most]},
            "changed": {
                "count": len(self.changed),
                "first": [
                    {"name": name, "a": one, "b": other} for name, one, other in self.changed[:most]
                ],
            },
        }


def compare_tables(a: JavaConfig, b: JavaConfig) -> list[TableDifference]:
    """Return the difference of each table, also of those that are the same."""
    return [
        _compared("topics", _beans(a.topics), _beans(b.topics)),
        _compared("groups", _beans(a.groups), _beans(b.groups)),
        _compared("offsets", dict(_offsets(a)), dict(_offsets(b))),
        _compared("delayLevels", _levels(a), _levels(b)),
    ]


def _compared(table: str, a: Mapping[str, object], b: Mapping[str, object]) -> TableDifference:
    return TableDifference(
        table,
        sorted(a.keys() - b.keys()),
        sorted(b.keys() - a.keys()),
        [(name, a[name], b[name]) for name in sorted(a.keys() & b.keys()) if a[name] != b[name]],
    )


def _beans(table: Mapping[str, Any]) -> dict[str, object]:
    return {name: bean.to_json() for name, bean in table.items()}


def _offsets(config: JavaConfig) -> Iterator[tuple[str, int]]:
    """Yield topic@group/queue and the committed offset."""
    for key, queues in config.consumer_offsets.items():
        for queue, offset in queues.items():
            yield f"{key}/{queue}", offset


def _levels(config: JavaConfig) -> dict[str, int]:
    return {str(level): offset for level, offset in config.delay_offsets.items()}
