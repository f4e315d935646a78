"""The tables of a store that say how far groups, delays and timers have come, read without repairing anything.

A file that is missing, empty or does not parse is replaced by its `.bak`, as a broker would; both unreadable is a note,
and an empty table: a story is told from what is left.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar, cast

from ...store.checkpoints import read_timer_checkpoint
from ...store.disk import Disk
from ...store.format.checkpoints import TimerCheckpoint
from ...store.format.java_json import Json, parse
from ...store.format.state_tables import (
    ConsumerOffsets,
    parse_consumer_offsets,
    parse_delay_offsets,
    parse_groups,
)
from .evidence import Filter, Place, PopMark, Reading

T = TypeVar("T")
_AT: Final = "@"


class Tables:
    """The tables in the folder config of the store at ROOT; NOTES collects what could not be read."""

    def __init__(self, disk: Disk, root: str, notes: list[str]) -> None:
        self._disk = disk
        self._folder = posixpath.join(root, "config")
        self._notes = notes

    def readings(self) -> dict[tuple[str, int], list[Reading]]:
        """Return where each group stands, by topic and queue."""
        table, at_ms = self._offsets("consumerOffset.json")
        earlier, earlier_ms = self._offsets("consumerOffset.json.bak")
        if table is None:
            table, at_ms = earlier, earlier_ms
            earlier, earlier_ms = None, None
        if table is None:
            self._notes.append(
                "consumerOffset.json cannot be read: what groups have read is not known"
            )
            return {}
        assert at_ms is not None, "a table that was read has a time"
        before = {} if earlier is None else earlier.offsets
        found: dict[tuple[str, int], list[Reading]] = {}
        for key, queues in table.offsets.items():
            topic, _, group = key.partition(_AT)
            for queue, committed in queues.items():
                then = before.get(key, {}).get(queue)
                reading = Reading(
                    group, committed, at_ms, then, None if then is None else earlier_ms
                )
                found.setdefault((topic, queue), []).append(reading)
        return found

    def _offsets(self, name: str) -> tuple[ConsumerOffsets | None, int | None]:
        """Return the table in the file NAME, and when that was written."""
        path = posixpath.join(self._folder, name)
        table = self._parsed(path, parse_consumer_offsets)
        return (None, None) if table is None else (table, self._disk.modified_ms(path))

    def filters(self) -> dict[tuple[str, str], Filter]:
        """Return the filters that are written down, by topic and group."""
        found = dict(_of_groups(self._either("subscriptionGroup.json", parse_groups)))
        document = self._either("consumerFilter.json", parse)
        found.update(_of_filter_table(document))
        return found

    def held_in_order(self) -> dict[Place, list[PopMark]]:
        """Return what POP consumers that read in order hold: popped, and not acknowledged."""
        document = self._either("consumerOrderInfo.json", parse)
        table = document.get("table") if isinstance(document, dict) else None
        found: dict[Place, list[PopMark]] = {}
        for key, queues in table.items() if isinstance(table, dict) else ():
            topic, _, group = str(key).partition(_AT)
            for queue, bean in queues.items() if isinstance(queues, dict) else ():
                if not str(queue).isdecimal():
                    continue
                for offset, mark in _held(group, bean):
                    found.setdefault((topic, int(queue), offset), []).append(mark)
        return found

    def delay_progress(self) -> Mapping[int, int] | None:
        """Return the next queue offset to deliver, by delay level; None without the table."""
        table = self._either("delayOffset.json", parse_delay_offsets)
        return None if table is None else table.offsets

    def timer_checkpoint(self) -> TimerCheckpoint | None:
        """Return how far the timers have come; None where nothing says it."""
        try:
            found = read_timer_checkpoint(self._disk, posixpath.join(self._folder, "timercheck"))
        except OSError:
            return None
        return None if found.is_empty else found

    def _either(self, name: str, parse_text: Callable[[str], T]) -> T | None:
        path = posixpath.join(self._folder, name)
        found = self._parsed(path, parse_text)
        return self._parsed(f"{path}.bak", parse_text) if found is None else found

    def _parsed(self, path: str, parse_text: Callable[[str], T]) -> T | None:
        try:
            data = self._disk.read(path)
            return parse_text(data.decode("utf-8")) if data else None
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            self._notes.append(f"{path} cannot be read: {error}")
            return None


def _of_groups(table: Any) -> Iterator[tuple[tuple[str, str], Filter]]:
    """Yield the filters in the beans of subscription groups."""
    for name, group in {} if table is None else table.groups.items():
        for bean in group.subscriptions or ():
            topic, filtered = _filter(bean)
            if filtered is not None:
                yield (topic, name), filtered


def _of_filter_table(document: Json) -> Iterator[tuple[tuple[str, str], Filter]]:
    """Yield the filters in consumerFilter.json."""
    for by_topic in _objects(document, "filterDataByTopic"):
        for bean in _objects(by_topic, "groupFilterData"):
            topic, filtered = _filter(bean)
            if filtered is not None and isinstance(bean, dict):
                yield (topic, str(bean.get("consumerGroup"))), filtered


def _held(group: str, bean: Json) -> Iterator[tuple[int, PopMark]]:
    """Yield what BEAN says of single offsets: the first, distances from it, and a bit for each acknowledged."""
    if not isinstance(bean, dict):
        return
    offsets, acknowledged = bean.get("o"), bean.get("cm", 0)
    popped_ms, invisible_ms = bean.get("popTime"), bean.get("i")
    if not isinstance(offsets, list) or not all(isinstance(one, int) for one in offsets):
        return
    if not isinstance(acknowledged, int) or not isinstance(popped_ms, int):
        return
    hidden_ms = invisible_ms if isinstance(invisible_ms, int) else None
    for number, distance in enumerate(offsets):
        assert isinstance(distance, int), "checked before"
        offset = distance if not number else cast(int, offsets[0]) + distance
        if not acknowledged >> number & 1:
            yield offset, PopMark(False, group, popped_ms, popped_ms, hidden_ms, None)


def _objects(value: Json, name: str) -> list[Json]:
    table = value.get(name) if isinstance(value, dict) else None
    return list(table.values()) if isinstance(table, dict) else []


def _filter(bean: Json) -> tuple[str, Filter | None]:
    """Return topic and filter that BEAN says; None for one that lets everything through."""
    if not isinstance(bean, dict):
        return "", None
    expression, kind = bean.get("expression"), bean.get("expressionType") or "TAG"
    if (
        not isinstance(expression, str)
        or not isinstance(kind, str)
        or expression.strip() in ("", "*")
    ):
        return "", None
    return str(bean.get("topic")), Filter(kind, expression)
