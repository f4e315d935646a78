"""The table of all queues of a store: topic → queue → its consume queue, plain or of batches.

A topic has batch queues if its files lie in batchconsumequeue/, or if topics.json says so (attribute
queue.type=BatchCQ) and it has no files yet. Light queues are those of Apache's topics `%LMQ%name`: their entries point
to records of other topics. Not thread-safe: the store's owner calls it.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

from ..proto.errors import StoreMismatch
from ..proto.record_run import QUEUE_ID_MAX
from .config import StoreConfig
from .consume_queue import BatchConsumeQueue, ConsumeQueue, Sum
from .disk import Disk
from .files import FolderSync, Syncable, SyncTogether
from .format.queues import LIGHT_PREFIX
from .format.state_tables import TopicConfig, parse_topics

__all__ = ["ConsumeQueue", "ConsumeQueues", "Queue"]

Queue = ConsumeQueue | BatchConsumeQueue

_ATTRIBUTE: Final = "queue.type"
_BATCH: Final = "BatchCQ"
#: More files and folders than that are synced together: one by one each costs a millisecond and more.
SYNCED_ONE_BY_ONE: Final = 256


class ConsumeQueues:
    """All queues of one store."""

    def __init__(
        self, disk: Disk, config: StoreConfig, batch_topics: Collection[str] = frozenset()
    ) -> None:
        """BATCH_TOPICS are those that get batch queues if they have no files yet."""
        self._disk = disk
        self._config = config
        self._batch_topics = batch_topics
        self._plain: dict[str, dict[int, ConsumeQueue]] = {}
        self._batch: dict[str, dict[int, BatchConsumeQueue]] = {}
        #: Those that may have something to sync: to ask all of 100,000 each second would stop everything else.
        self._touched: dict[Queue, None] = {}
        self._folders_to_sync: list[str] = []
        #: What was dirty when the last owner was killed.
        self._distrusted: list[Syncable] = []
        #: The next queue offset of each queue, as of when it was touched last.
        self._ends: dict[Queue, int] = {}
        #: Where the log began when the queues were last cleaned.
        self._cleaned_from = -1
        #: Is the log that of a replica?
        self._is_followed = False

    @classmethod
    def load(cls, disk: Disk, config: StoreConfig) -> ConsumeQueues:
        """Open every queue that has a folder; other names in the folders are left alone.

        StoreMismatch for files that do not belong, and for a topic that has queues of both kinds.
        """
        table = cls(disk, config, batch_topics(disk, config.state_folder))
        for topic, queue in queue_folders(disk, config.queue_folder):
            table._open_plain(topic, queue)
        for topic, queue in queue_folders(disk, config.batch_queue_folder):
            if topic in table._plain:
                raise StoreMismatch(
                    f'topic "{topic}" has queues in {config.queue_folder} and in {config.batch_queue_folder}:'
                    " a topic has one kind; move one of the two folders away",
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
        """The log is that of a replica: a queue may begin anew anywhere in it."""
        self._is_followed = True
        for queues in self._plain.values():
            for one in queues.values():
                one.is_followed = True

    # --- finding -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Queue]:
        """Yield every queue."""
        for table in (self._plain, self._batch):
            for queues in table.values():
                yield from queues.values()

    @property
    def count(self) -> int:
        """How many queues there are, but for those that are as new as the last `take_dirty`."""
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
        """Return the queue offset behind the last message of a queue, confirmed or not; 0 for no such queue."""
        found = self.get(topic, queue) or self.get_batch(topic, queue)
        return 0 if found is None else found.max_offset

    def find_or_make(self, topic: str, queue: int) -> ConsumeQueue:
        """Return a plain queue to write to, new and without files if there is none."""
        found = self.get(topic, queue)
        if found is None:
            return self._open_plain(topic, queue)
        self._touched[found] = None
        return found

    def find_or_make_batch(self, topic: str, queue: int) -> BatchConsumeQueue:
        """Return a batch queue to write to, new and without files if there is none."""
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
        """Return (topic, queue) of every queue that has files, sorted."""
        return sorted((one.topic, one.queue) for one in self if one.files.files)

    @property
    def max_log_end(self) -> int:
        """Where the newest record that any queue points to ends in the log; −1 without entries."""
        return max((one.max_log_end for one in self), default=-1)

    # --- after a stop, and cleaning ------------------------------------------------------------------------------

    def recover(
        self,
        last_files: int | None = 3,
        sums_of: Callable[[str], Iterable[Sum]] | None = None,
    ) -> list[Queue]:
        """Find the end of every queue, see `EntryRow.recover`; return those that are not as their sums say.

        SUMS_OF tells those of the queue `topic/queue`; None: there are none.
        """
        self._touch_all()
        changed = []
        for one in self:
            sums = () if sums_of is None else sums_of(f"{one.topic}/{one.queue}")
            if not one.recover(last_files, sums):
                changed.append(one)
        return changed

    def sum_up(self) -> None:
        """Sum up every queue whose entries the log determines, see `EntryRow.sums`."""
        for one in self:
            if not one.topic.startswith(LIGHT_PREFIX):
                one.sum_up()

    def truncate(self, log_end: int) -> int:
        """Take out every entry that points to LOG_END or behind it; return how many."""
        self._touch_all()
        return sum(one.truncate(log_end) for one in self)

    def correct_min_offsets(self, min_log_offset: int) -> None:
        """Set the min offset of every queue to its first message that the log still holds."""
        for one in self:
            one.correct_min_offset(min_log_offset)

    def delete_expired(self, min_log_offset: int) -> int:
        """Delete files that only hold messages before MIN_LOG_OFFSET, never a queue's last; return how many.

        Nothing is to do unless the log begins elsewhere than when this was last called.
        """
        if min_log_offset == self._cleaned_from:
            return 0
        self._cleaned_from = min_log_offset
        count = 0
        for one in self:
            if len(one.files.files) > 1:
                count += one.delete_expired(min_log_offset)
                self._touched[one] = None
            else:
                one.correct_min_offset(min_log_offset)
        return count

    def delete_topic(self, topic: str, before: int | None = None) -> None:
        """Delete the queues of TOPIC with their files; with BEFORE only those that end there in the log, or before.

        A topic whose name leads to another folder, like "..", has no queues: nothing is deleted.
        """
        if not _is_folder_name(topic):
            return
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

    # --- to the device -------------------------------------------------------------------------------------------

    def take_dirty(self) -> list[Syncable]:
        """Return what must be synced so that every entry written up to now is on the device, and forget it."""
        folders, self._folders_to_sync = self._folders_to_sync, []
        distrusted, self._distrusted = self._distrusted, []
        files: list[Syncable] = []
        for one in self._touched:
            folders += one.files.take_folders()
            files += one.files.take_dirty_files()
        self._forget_touched()
        names: list[Syncable] = [FolderSync(self._disk, path) for path in dict.fromkeys(folders)]
        return distrusted + self._together(names + files)

    def _together(self, parts: list[Syncable]) -> list[Syncable]:
        """Return PARTS as one where they are many."""
        if len(parts) <= SYNCED_ONE_BY_ONE:
            return parts
        return [SyncTogether(self._disk, self._config.path, parts)]

    def distrust_device(self) -> None:
        """Count everything as dirty: after a kill, what the last owner wrote may still be in the page cache only."""
        self._touch_all()
        for one in self:
            one.files.mark_dirty()
        self._distrusted = self.take_dirty()

    def ends(self) -> dict[Queue, int]:
        """Return the next queue offset of each queue that has had messages; behind `take_dirty` a mere copy."""
        self._note_ends()
        return self._ends.copy()

    def touch(self, queue: Queue) -> None:
        """Have QUEUE, which was found for reading, asked for what it has to sync."""
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
    """Yield topic and queue of each folder ROOT/topic/number; a number that no queue has is left out."""
    for topic in disk.list(root):
        if topic.is_folder:
            for entry in disk.list(os.path.join(root, topic.name)):
                digits = entry.is_folder and entry.name.isascii() and entry.name.isdigit()
                if digits and int(entry.name) <= QUEUE_ID_MAX:
                    yield topic.name, int(entry.name)


def _is_folder_name(topic: str) -> bool:
    """Is the folder of TOPIC one of its own in that of all queues?"""
    return topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic


def batch_topics(disk: Disk, state_folder: str) -> frozenset[str]:
    """Return the topics that topics.json in STATE_FOLDER gives batch queues; none without a readable table."""
    topics = stored_topics(disk, state_folder)
    return frozenset(
        name
        for name, topic in topics.items()
        if topic.attributes.get(_ATTRIBUTE) == _BATCH and _is_folder_name(name)
    )


def stored_topics(disk: Disk, state_folder: str) -> dict[str, TopicConfig]:
    """Return the topics in topics.json in STATE_FOLDER, by name; none without a readable table.

    Only looks: whoever owns the table says what is wrong with its file, and puts it right.
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
