"""The table of all queues of a store: topic → queue → its consume queue, plain or of batches.

A topic has batch queues if its files are in batchconsumequeue/, or if topics.json says so (attribute
queue.type=BatchCQ) and it has no files yet. Light queues are those of RocketMQ's topics `%LMQ%name`: their entries
point to records of other topics. Those of lite topics are in `lite` (lite_queues.py). Not thread-safe: the store's
owner calls it.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from ..proto.errors import StoreMismatch
from ..proto.lite_topics import LITE_QUEUE, split_lite_queue
from ..proto.record_run import QUEUE_ID_MAX
from .config import StoreConfig
from .consume_queue import BatchConsumeQueue, ConsumeQueue, Sum
from .disk import Disk
from .files import SYNCED_ONE_BY_ONE, FolderSync, Syncable, SyncTogether
from .format.queues import LIGHT_PREFIX
from .format.state_tables import TopicConfig, parse_topics
from .lite_files import LiteFlush
from .lite_queues import LiteQueues

__all__ = ["ConsumeQueue", "ConsumeQueues", "Queue"]

Queue = ConsumeQueue | BatchConsumeQueue

_ATTRIBUTE: Final = "queue.type"
_BATCH: Final = "BatchCQ"


class ConsumeQueues:
    """All queues of one store."""

    def __init__(
        self, disk: Disk, config: StoreConfig, batch_topics: Collection[str] = frozenset()
    ) -> None:
        """BATCH_TOPICS get batch queues if they have no files yet."""
        self._disk = disk
        self._config = config
        self._batch_topics = batch_topics
        self._plain: dict[str, dict[int, ConsumeQueue]] = {}
        self._batch: dict[str, dict[int, BatchConsumeQueue]] = {}
        #: Queues that may have something to sync: checking all of 100,000 each second would block everything else.
        self._touched: dict[Queue, None] = {}
        self._folders_to_sync: list[str] = []
        #: Files that were dirty when the last owner was killed.
        self._dirty_before: list[Syncable] = []
        #: The next queue offset of each queue, as of its last `touch`.
        self._ends: dict[Queue, int] = {}
        #: The start of the log when the queues were last cleaned.
        self._cleaned_from = -1
        #: Does the log belong to a replica?
        self._is_followed = False
        #: The queues of lite topics.
        self.lite = LiteQueues(disk, config)
        self._lite_flush: LiteFlush | None = None

    @classmethod
    def load(cls, disk: Disk, config: StoreConfig) -> ConsumeQueues:
        """Open each queue that has a folder; other names in the folders are ignored.

        StoreMismatch for files that do not belong there, and for a topic that has queues of both kinds.
        """
        table = cls(disk, config, batch_topics(disk, config.state_folder))
        for topic, queue in queue_folders(disk, config.queue_folder):
            if queue == LITE_QUEUE and split_lite_queue(topic) is not None:
                table.lite.load(topic)
            else:
                table._open_plain(topic, queue)
        for topic, queue in queue_folders(disk, config.batch_queue_folder):
            if topic in table._plain:
                raise StoreMismatch(
                    f'topic "{topic}" has queues in {config.queue_folder} and in {config.batch_queue_folder}:'
                    " a topic has only one kind: move one of the two folders away",
                    topic=topic,
                )
            table._open_batch(topic, queue)
        return table

    def _open_plain(self, topic: str, queue: int) -> ConsumeQueue:
        opened = ConsumeQueue.load(
            self._disk,
            self._config.queue_folder,
            self._config.queue_file_size_bytes,
            topic,
            queue,
        )
        opened.is_followed = self._is_followed
        self._plain.setdefault(topic, {})[queue] = opened
        self._touched[opened] = None
        return opened

    def _open_batch(self, topic: str, queue: int) -> BatchConsumeQueue:
        opened = BatchConsumeQueue.load(
            self._disk,
            self._config.batch_queue_folder,
            self._config.batch_queue_file_size_bytes,
            topic,
            queue,
        )
        self._batch.setdefault(topic, {})[queue] = opened
        self._touched[opened] = None
        return opened

    def follow(self) -> None:
        """Note that the log belongs to a replica: a queue may start again anywhere in it."""
        self._is_followed = True
        for queues in self._plain.values():
            for one in queues.values():
                one.is_followed = True

    def __iter__(self) -> Iterator[Queue]:
        """Yield all queues."""
        for table in (self._plain, self._batch):
            for queues in table.values():
                yield from queues.values()

    @property
    def count(self) -> int:
        """The number of queues; those created since the last `take_dirty` may be missing."""
        return len(self._ends)

    def is_batch(self, topic: str) -> bool:
        """Does TOPIC have batch queues?"""
        return topic in self._batch or (topic not in self._plain and topic in self._batch_topics)

    def get(self, topic: str, queue: int) -> ConsumeQueue | None:
        """Return a plain queue; None if there is none."""
        return self._plain.get(topic, {}).get(queue)

    def get_batch(self, topic: str, queue: int) -> BatchConsumeQueue | None:
        """Return a batch queue; None if there is none."""
        return self._batch.get(topic, {}).get(queue)

    def end(self, topic: str, queue: int) -> int:
        """Return the queue offset after the last message of a queue, confirmed or not; 0 if there is no such queue."""
        found = self.get(topic, queue) or self.get_batch(topic, queue)
        return 0 if found is None else found.max_offset

    def find_or_make(self, topic: str, queue: int) -> ConsumeQueue:
        """Return a plain queue to write to; if there is none, a new one without files."""
        found = self.get(topic, queue)
        if found is None:
            return self._open_plain(topic, queue)
        self._touched[found] = None
        return found

    def find_or_make_batch(self, topic: str, queue: int) -> BatchConsumeQueue:
        """Return a batch queue to write to; if there is none, a new one without files."""
        found = self.get_batch(topic, queue)
        if found is None:
            return self._open_batch(topic, queue)
        self._touched[found] = None
        return found

    def next_offset(self, topic: str, queue: int) -> int:
        """Return the queue offset of the next message of a plain queue."""
        found = self.get(topic, queue)
        return 0 if found is None else found.max_offset

    def names(self) -> list[tuple[str, int]]:
        """Return (topic, queue) of each queue that has files, sorted."""
        return sorted((one.topic, one.queue) for one in self if one.files.files)

    @property
    def max_log_end(self) -> int:
        """The end of the newest record to which a queue points; −1 without entries."""
        return max((one.max_log_end for one in self), default=-1)

    def recover(
        self,
        last_files: int | None = 3,
        sums_of: Callable[[str], Iterable[Sum]] | None = None,
    ) -> list[Queue]:
        """Find the end of each queue, see `EntryRow.recover`; return those that are not as their sums say.

        SUMS_OF returns the sums of the queue `topic/queue`; None: it has none.
        """
        self._touch_all()
        changed = []
        for one in self:
            sums = () if sums_of is None else sums_of(f"{one.topic}/{one.queue}")
            if not one.recover(last_files, sums):
                changed.append(one)
        return changed

    def update_sums(self) -> None:
        """Update the sums of all queues whose entries are derived from the log, see `EntryRow.sums`."""
        for one in self:
            if not one.topic.startswith(LIGHT_PREFIX):
                one.update_sums()

    def truncate(self, log_end: int) -> int:
        """Delete all entries that point to LOG_END or after it; return how many."""
        self._touch_all()
        return sum(one.truncate(log_end) for one in self) + self.lite.truncate(log_end)

    def correct_min_offsets(self, min_log_offset: int) -> None:
        """Set the min offset of each queue to its first message that is still in the log."""
        self.lite.begin_log_at(min_log_offset)
        for one in self:
            one.correct_min_offset(min_log_offset)

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete files with only messages before MIN_LOG_OFFSET, never a queue's last; return how many.

        Does nothing if the start of the log has not changed since the last call.
        """
        if min_log_offset == self._cleaned_from:
            return 0
        self._cleaned_from = min_log_offset
        self.lite.begin_log_at(min_log_offset)
        count = self.lite.delete_expired()
        for one in self:
            if len(one.files.files) > 1:
                count += one.delete_expired(min_log_offset)
                self._touched[one] = None
            else:
                one.correct_min_offset(min_log_offset)
        return count

    def delete_topic(self, topic: str, before: int | None = None) -> None:
        """Delete the queues of TOPIC with their files; with BEFORE only those whose last record ends there or before.

        A topic whose name leads to another folder, like "..", has no queues: nothing is deleted.
        """
        if not _is_folder_name(topic):
            return
        self.lite.delete_parent(topic, before)
        for table in (self._plain, self._batch):
            queues: dict[int, Queue] = {**table.get(topic, {})}
            for one in queues.values():
                if before is None or one.max_log_end <= before:
                    del table[topic][one.queue]
                    self._delete(one)
            if not table.get(topic, True):
                del table[topic]
        if self._plain.get(topic) or self._batch.get(topic):
            return
        queue_folder = self._config.queue_folder
        for folder in (queue_folder, f"{queue_folder}_ext", self._config.batch_queue_folder):
            self._disk.delete_folder(os.path.join(folder, topic))

    def _delete(self, queue: Queue) -> None:
        queue.destroy()
        self._touched.pop(queue, None)
        self._ends.pop(queue, None)
        self._folders_to_sync += queue.files.take_folders()

    def take_dirty(self) -> list[Syncable]:
        """Return what must be synced so that all entries written until now are on disk, and forget it."""
        folders, self._folders_to_sync = self._folders_to_sync, []
        dirty, self._dirty_before = self._dirty_before, []
        files: list[Syncable] = []
        for one in self._touched:
            folders += one.files.take_folders()
            files += one.files.take_dirty_files()
        self._forget_touched()
        names: list[Syncable] = [FolderSync(self._disk, path) for path in dict.fromkeys(folders)]
        return dirty + self._together(names + files) + self._lite_entries()

    def _lite_entries(self) -> list[Syncable]:
        """Return the job that writes the new entries of lite queues, if there are any."""
        if self._lite_flush is not None:
            self._lite_flush.note()
            self._lite_flush = None
        if not self.lite.touched:
            return []
        self._lite_flush = LiteFlush(self._disk, self.lite)
        return [self._lite_flush]

    def write_lite_entries(self) -> None:
        """Write the new entries of lite queues to their files now."""
        if self._lite_flush is not None:
            self._lite_flush.sync()
        for job in self._lite_entries():
            job.sync()
        if self._lite_flush is not None:
            self._lite_flush.note()
            self._lite_flush = None

    @property
    def lacks_lite_entries(self) -> bool:
        """Do the files of lite queues lack entries, because the disk was full at the last flush?"""
        return self._lite_flush is not None and not self._lite_flush.is_done

    def _together(self, parts: list[Syncable]) -> list[Syncable]:
        """Return PARTS, as one if they are many."""
        if len(parts) <= SYNCED_ONE_BY_ONE:
            return parts
        return [SyncTogether(self._disk, self._config.path, parts)]

    def mark_all_dirty(self) -> None:
        """Mark everything as dirty: after a kill, writes of the last owner may be only in the page cache."""
        self._touch_all()
        for one in self:
            one.files.mark_dirty()
        self._dirty_before = self.take_dirty()

    def ends(self) -> dict[Queue, int]:
        """Return the next queue offset of each queue that has had messages. After `take_dirty` this is only a copy."""
        self._note_ends()
        return self._ends.copy()

    def touch(self, queue: Queue) -> None:
        """Include QUEUE, which was found for reading, in the next `take_dirty`."""
        self._touched[queue] = None

    def _touch_all(self) -> None:
        self._touched.update(dict.fromkeys(self))

    def _note_ends(self) -> None:
        for one in self._touched:
            self._ends[one] = one.max_offset

    def _forget_touched(self) -> None:
        self._note_ends()
        self._touched.clear()

    def close(self) -> None:
        """Close every file. Nothing is synced."""
        for one in self:
            one.files.close()


def queue_folders(disk: Disk, root: str) -> Iterator[tuple[str, int]]:
    """Yield topic and queue of each folder ROOT/topic/number; numbers that no queue can have are left out."""
    for topic in disk.list(root):
        if topic.is_folder:
            for entry in disk.list(os.path.join(root, topic.name)):
                digits = entry.is_folder and entry.name.isascii() and entry.name.isdigit()
                if digits and int(entry.name) <= QUEUE_ID_MAX:
                    yield topic.name, int(entry.name)


def _is_folder_name(topic: str) -> bool:
    """Is the folder of TOPIC a direct child of the folder of all queues?"""
    return topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic


def batch_topics(disk: Disk, state_folder: str) -> frozenset[str]:
    """Return the topics to which topics.json in STATE_FOLDER gives batch queues; none without a readable table."""
    topics = stored_topics(disk, state_folder)
    return frozenset(
        name
        for name, topic in topics.items()
        if topic.attributes.get(_ATTRIBUTE) == _BATCH and _is_folder_name(name)
    )


def stored_topics(disk: Disk, state_folder: str) -> dict[str, TopicConfig]:
    """Return the topics in topics.json in STATE_FOLDER, by name; none without a readable table.

    Only reads: the owner of the table reports errors in its file, and repairs it.
    """
    for name in ("topics.json", "topics.json.bak"):
        path = posixpath.join(state_folder, name)
        if not disk.exists(path):
            continue
        try:
            return parse_topics(disk.read(path).decode("utf-8-sig")).topics
        except ValueError:
            continue
    return {}
