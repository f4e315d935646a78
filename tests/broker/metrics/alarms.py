"""Expressions of alarms, evaluated on pages: the part of Prometheus' language that docker/alerts.yaml is written in.

    expression   one [unless one]… [or one]…           each side as in Prometheus, matched by all labels
    one          ( expression ) | increase(selector[5m]) | selector [offset 5m]      each [> < >= <= == != NUMBER]
    selector     name{label="…", label=~"…", label!="…"}

What is not of this is refused. An increase is not extrapolated to its window: whether it is above 0 is the same.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families

Key = frozenset[tuple[str, str]]
Vector = dict[Key, float]
#: By name: what a page says, or a scrape of it.
Page = Mapping[str, Vector]

_TOKEN: Final = re.compile(
    r'\s*(?:("(?:[^"\\]|\\.)*")|(\d+(?:\.\d+)?(?:[smhd])?)|([a-zA-Z_:]\w*)|(=~|!~|!=|==|>=|<=|[=<>(){}\[\],]))'
)
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_COMPARED: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
#: A series is there for so long after its last sample.
_LOOKBACK_S: Final = 300


def read(text: str) -> dict[str, Vector]:
    """Return the samples of a page by their names."""
    found: dict[str, Vector] = {}
    parsed: Any = text_string_to_metric_families(text)
    for family in parsed:
        for sample in family.samples:
            found.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
    return found


class Evaluation:
    """EXPRESSION at NOW_S, over the SCRAPES, each with its time, in their order."""

    def __init__(
        self, expression: str, scrapes: Sequence[tuple[float, Page]], now_s: float
    ) -> None:
        self._scrapes = scrapes
        self._now_s = now_s
        self._tokens: list[str] = []
        at = 0
        while expression[at:].strip():
            match = _TOKEN.match(expression, at)
            assert match, f"not of this language: {expression[at:]!r}"
            self._tokens.append(match[0].strip())
            at = match.end()
        self.names: list[str] = []
        self.value = self._expression()
        assert not self._tokens, f"not of this language: {self._tokens}"

    def _next(self, *wanted: str) -> str:
        token = self._tokens.pop(0) if self._tokens else ""
        assert not wanted or token in wanted, f"{token!r} where {wanted} should stand"
        return token

    def _comes(self, *tokens: str) -> bool:
        return bool(self._tokens) and self._tokens[0] in tokens

    def _expression(self) -> Vector:
        found = self._without()
        while self._comes("or"):
            self._next()
            found = self._without() | found
        return found

    def _without(self) -> Vector:
        found = self._one()
        while self._comes("unless"):
            self._next()
            others = self._one()
            found = {key: value for key, value in found.items() if key not in others}
        return found

    def _one(self) -> Vector:
        if self._comes("("):
            self._next()
            found = self._expression()
            self._next(")")
        elif self._comes("increase"):
            self._next()
            self._next("(")
            name, matches = self._selector()
            self._next("[")
            window_s = self._seconds()
            self._next("]")
            self._next(")")
            found = self._increase(name, matches, window_s)
        else:
            name, matches = self._selector()
            offset_s = 0.0
            if self._comes("offset"):
                self._next()
                offset_s = self._seconds()
            found = self._instant(name, matches, self._now_s - offset_s)
        if self._comes(*_COMPARED):
            holds, number = _COMPARED[self._next()], float(self._next())
            found = {key: value for key, value in found.items() if holds(value, number)}
        return found

    def _seconds(self) -> float:
        token = self._next()
        return float(token[:-1]) * _UNITS[token[-1]]

    def _selector(self) -> tuple[str, Callable[[Key], bool]]:
        name = self._next()
        assert re.fullmatch(r"[a-z_:]\w*", name), f"{name!r} is no family"
        self.names.append(name)
        wanted: list[tuple[str, str, str]] = []
        if self._comes("{"):
            self._next()
            while not self._comes("}"):
                wanted.append((self._next(), self._next("=", "!=", "=~", "!~"), self._next()[1:-1]))
                if self._comes(","):
                    self._next()
            self._next("}")

        def matches(key: Key) -> bool:
            labels = dict(key)
            return all(_matches(labels.get(label, ""), how, value) for label, how, value in wanted)

        return name, matches

    def _instant(self, name: str, matches: Callable[[Key], bool], at_s: float) -> Vector:
        before = [page for time_s, page in self._scrapes if at_s - _LOOKBACK_S < time_s <= at_s]
        last = before[-1].get(name, {}) if before else {}
        return {key: value for key, value in last.items() if matches(key)}

    def _increase(self, name: str, matches: Callable[[Key], bool], window_s: float) -> Vector:
        series: dict[Key, list[float]] = {}
        for time_s, page in self._scrapes:
            if self._now_s - window_s < time_s <= self._now_s:
                for key, value in page.get(name, {}).items():
                    if matches(key):
                        series.setdefault(key, []).append(value)
        return {
            key: sum(
                after - before if after >= before else after for before, after in pairwise(values)
            )
            for key, values in series.items()
            if len(values) > 1
        }


def _matches(value: str, how: str, wanted: str) -> bool:
    if how in ("=", "!="):
        return (value == wanted) == (how == "=")
    return bool(re.fullmatch(wanted, value)) == (how == "=~")
