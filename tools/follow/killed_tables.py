"""The newer of two sets of tables: those in the store of a killed Java broker, and those of the store that followed it.

A broker that is killed leaves its tables as it wrote them last: topics and groups at each change, offsets every five
seconds. The follower read them from the living broker every second. So either may be newer:

    topics.json, subscriptionGroup.json    the one of the later version
    consumerOffset.json, delayOffset.json  of each queue and level the greater offset: versions do not tell, since Java
                                           counts up the one of offsets once in 500 commits
    others                                 those of Java that the follower does not have

Nothing is written to the store of the Java broker. A table that cannot be read, with its backup, is left out.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ...proto.errors import CorruptState
from ...store.disk import Disk
from ...store.format import state_tables
from ...store.offsets_file import OffsetsFile
from ...store.overlay_disk import OverlayDisk
from ...store.state_files import StateFile
from ..counted import counted

T = TypeVar("T")

_DELAYS_FILE: Final = "delayOffset.json"
_OTHERS: Final = ("messageRequestMode.json", "consumerFilter.json", "consumerOrderInfo.json")
_VERSIONED: Final[dict[str, Callable[[str], Any]]] = {
    "topics.json": state_tables.parse_topics,
    "subscriptionGroup.json": state_tables.parse_groups,
}


def take_newer(disk: Disk, java: str, target: str) -> list[str]:
    """Have the store TARGET have the newer of its tables and those of the store JAVA; return what was taken, in words.

    Raises StoreError where TARGET's cannot be read or written.
    """
    words: list[str] = []
    source = OverlayDisk(disk)
    for name, parse in _VERSIONED.items():
        if _take_versioned(source, java, StateFile(disk, target, name), parse, words):
            words.append(f"{name} was newer in the stopped store, and was taken")
    moved = _take_offsets(source, java, OffsetsFile(disk, target), words)
    moved += _take_delays(source, java, StateFile(disk, target, _DELAYS_FILE), words)
    if moved:
        words.append(
            f"{counted(moved, 'offset')} taken from the stopped store, which was further ahead"
        )
    for name in _OTHERS:
        path = posixpath.join(java, "config", name)
        file = StateFile(disk, target, name)
        if disk.exists(path) and not disk.exists(file.path):
            file.save(disk.read(path).decode("utf-8", "replace"))
    return words


def _take_versioned(
    source: Disk, java: str, file: StateFile, parse: Callable[[str], Any], words: list[str]
) -> bool:
    found = _load(StateFile(source, java, file.name), lambda text: (text, parse(text)), words)
    if found is None:
        return False
    text, theirs = found
    own = file.load(parse).value
    if own is not None and _order(theirs.version) <= _order(own.version):
        return False
    file.save(text)
    return True


def _order(version: state_tables.DataVersion) -> tuple[int, int]:
    return version.counter, version.timestamp_ms


def _take_offsets(source: Disk, java: str, file: OffsetsFile, words: list[str]) -> int:
    theirs = _load(OffsetsFile(source, java), state_tables.parse_consumer_offsets, words)
    if theirs is None:
        return 0
    own = file.load(state_tables.parse_consumer_offsets).value or state_tables.ConsumerOffsets()
    moved = 0
    for mine, other in (
        (own.offsets, theirs.offsets),
        (own.pull_offsets, theirs.pull_offsets),
    ):
        for key, queues in other.items():
            moved += _raise_to(mine.setdefault(key, {}), queues)
    if moved:
        file.save(state_tables.render_consumer_offsets(own))
    return moved


def _take_delays(source: Disk, java: str, file: StateFile, words: list[str]) -> int:
    theirs = _load(StateFile(source, java, file.name), state_tables.parse_delay_offsets, words)
    if theirs is None:
        return 0
    own = file.load(state_tables.parse_delay_offsets).value or state_tables.DelayOffsets()
    if moved := _raise_to(own.offsets, theirs.offsets):
        file.save(state_tables.render_delay_offsets(own))
    return moved


def _raise_to(own: dict[int, int], other: dict[int, int]) -> int:
    """Raise the offsets OWN to those of OTHER that are greater; return how many were."""
    greater = {one: offset for one, offset in other.items() if offset > own.get(one, -1)}
    own.update(greater)
    return len(greater)


def _load(file: StateFile, parse: Callable[[str], T], words: list[str]) -> T | None:
    """Return the table in FILE of the stopped store; None where there is none that can be read."""
    try:
        return file.load(parse).value
    except CorruptState as error:
        words.append(f"not taken from the stopped store: {error.message}")
        return None
