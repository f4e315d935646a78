"""The files of consumer offsets: consumerOffset.json, and the lmqConsumerOffset.json of brokers with enableLmq=true."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar

from ..proto.errors import CorruptState
from ..proto.lite_topics import LITE_PREFIX
from .disk import Disk
from .format.java_json import Json, parse, render
from .format.state_tables import DataVersion, parse_consumer_offsets
from .state_files import Loaded, StateFile

T = TypeVar("T")


OFFSETS_FILE: Final = "consumerOffset.json"
#: A RocketMQ broker with enableLmq=true writes this file instead.
LMQ_OFFSETS_FILE: Final = "lmqConsumerOffset.json"
_LMQ_TABLE: Final = "lmqOffsetTable"
#: A RocketMQ broker writes its file every 5 s: one that is older than the other by this is out of use. (Copies may have
#: been made in any order.)
_OUT_OF_USE_MS: Final = 60_000


def offsets_file(disk: Disk, root: str) -> str:
    """Return the name of the file of the store ROOT with the newest offsets of groups.

    When enableLmq is changed, a RocketMQ broker continues with the other file, and does not change the previous one.
    """
    plain, lmq = (_written(disk, root, name) for name in (OFFSETS_FILE, LMQ_OFFSETS_FILE))
    if lmq is None or plain is None:
        return OFFSETS_FILE if lmq is None else LMQ_OFFSETS_FILE
    is_out_of_use = abs(lmq.modified_ms - plain.modified_ms) > _OUT_OF_USE_MS
    if is_out_of_use or lmq.version == plain.version:
        return LMQ_OFFSETS_FILE if lmq.modified_ms > plain.modified_ms else OFFSETS_FILE
    return LMQ_OFFSETS_FILE if lmq.version > plain.version else OFFSETS_FILE


class _Written(NamedTuple):
    """When a file was written, and the version of its table: time, then counter."""

    modified_ms: int
    version: tuple[int, int]


def _written(disk: Disk, root: str, name: str) -> _Written | None:
    """Return these values of the file NAME of the store ROOT, or of its backup; None if there is neither."""
    path = posixpath.join(root, "config", name)
    for one in (path, f"{path}.bak"):
        if disk.exists(one) and (data := disk.read(one)):
            try:
                version = parse_consumer_offsets(data.decode("utf-8-sig")).version
            except ValueError:
                version = DataVersion()
            return _Written(disk.modified_ms(one), (version.timestamp_ms, version.counter))
    return None


class OffsetsFile(StateFile):
    """The offsets of groups: consumerOffset.json, and lmqConsumerOffset.json if it exists.

    The newer of the two is read, and both are written, so that a RocketMQ broker finds them with any enableLmq. The
    second file is also written once there are offsets of lite topics.
    """

    def __init__(self, disk: Disk, root: str) -> None:
        super().__init__(disk, root, OFFSETS_FILE)
        self._lmq = StateFile(disk, root, LMQ_OFFSETS_FILE)
        #: Entries of groups of light queues, which are only in the second file.
        self._lmq_groups: Json = {}

    def load(self, parse_text: Callable[[str], T]) -> Loaded[T]:
        if not self.are_two:
            return super().load(parse_text)
        with suppress(CorruptState):
            self._lmq_groups = self._lmq.load(_lmq_groups).value or {}
        if offsets_file(self.disk, self.root) == LMQ_OFFSETS_FILE:
            return self._lmq.load(parse_text)
        return super().load(parse_text)

    def save(self, text: str | Iterable[str]) -> None:
        whole = text if isinstance(text, str) else "".join(text)
        if not self.are_two and f'"{LITE_PREFIX}' not in whole:
            super().save(whole)
            return
        super().save(whole)
        groups = render(self._lmq_groups, pretty=False)
        self._lmq.save(f'{whole.rstrip().removesuffix("}")},"{_LMQ_TABLE}":{groups}}}')

    @property
    def are_two(self) -> bool:
        """Is there a second file? Then one of them may lack entries of the other."""
        return self.disk.exists(self._lmq.path) or self.disk.exists(self._lmq.backup_path)


def _lmq_groups(text: str) -> Json:
    document = parse(text)
    return document.get(_LMQ_TABLE, {}) if isinstance(document, dict) else {}
