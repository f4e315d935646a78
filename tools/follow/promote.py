"""`pocketmq promote`: makes a store that followed a Java broker ready for PocketMQ, if it has all of the master's log.

Nothing is written before both logs have the same end. Then these steps run. After a kill they can be repeated:

- Offsets of groups and delay levels beyond the ends of their queues are set to these ends. Otherwise later messages
  would be skipped. With equal ends there are none.
- Topics that have queues but no configuration get one: they were created after the tables were last read.
- The timers get the master's checkpoint. A broker that opens the store adds the undelivered messages to its timers.
- The note that the store follows a master is removed.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field, replace

from ...proto.errors import ClientError, ConnectFailed, StoreLocked, StoreMismatch, Unsupported
from ...proto.topics import SCHEDULE_TOPIC, is_system_topic, system_topic_queues
from ...store.checkpoints import CHECKPOINT_SIZE, TimerCheckpoint
from ...store.config import StoreConfig, apply_apache_settings
from ...store.disk import Disk
from ...store.format import state_tables
from ...store.format.timer_log import RECORD_SIZE
from ...store.message_store import MessageStore
from ...store.offsets_file import OffsetsFile
from ...store.state_files import StateFile
from ..counted import counted
from .master import JavaMaster
from .note import FollowNote, note_path, read_note
from .stopped_store import StoppedStore


@dataclass(slots=True)
class Promoted:
    """The result. WORDS: sentences for people."""

    note: FollowNote
    end: int
    words: list[str] = field(default_factory=list)


async def promote(
    disk: Disk,
    path: str,
    now_ms: int,
    *,
    rpc: str | None = None,
    java_store: str | None = None,
    end: int | None = None,
    accept_loss: bool = False,
) -> Promoted:
    """Make the store PATH, which followed a Java broker, ready for PocketMQ.

    RPC: address of the master, if it is not the noted one. JAVA_STORE: its stopped store, from which the rest of the
    log is copied. END: end of its log. ACCEPT_LOSS: promote although the end is unknown, or the master has more. Raises
    StoreMismatch, with a remedy, if the ends differ or the Java broker still runs.
    """
    note = read_note(disk, path)
    if note is None:
        raise StoreMismatch(
            f"{path} does not follow a Java broker: there is nothing to promote", path=path
        )
    doubt = await _check_stopped(path, rpc or note.rpc)
    config = apply_apache_settings(StoreConfig(path=path), note.settings)
    java = StoppedStore(disk, java_store, config.log_file_size_bytes) if java_store else None
    known = note.stopped_at if end is None else end
    try:
        store = MessageStore.open(config, disk=disk, now_ms=lambda: now_ms, replica=True)
    except StoreLocked:
        raise StoreLocked(
            f"`pocketmq follow` still writes to {path}: stop it first", path=path
        ) from None
    done = Promoted(note, store.max_log_offset, doubt)
    try:
        if java is not None:
            _complete_log(path, store, java, done)
        elif not accept_loss:
            _compare(path, done.end, known)
        elif known != done.end:
            done.words.append(
                f"the log ends at {done.end:,}; the master's was last known to end at {known or note.master_end:,}:"
                f" records after {done.end:,} are missing"
            )
        if java is not None and not java.was_killed:
            java.copy_tables(path)
            done.words.append(f"topics, groups and offsets are those of {java_store}")
        elif java is not None:
            done.words += java.take_newer_tables(path)
        _settle_offsets(disk, path, store, done)
        _complete_topics(disk, path, store, done)
    finally:
        store.close()
    checkpoint = bytes.fromhex(note.timer_checkpoint)
    if java is not None:
        checkpoint = java.timer_checkpoint(checkpoint)
    _begin_timers(disk, config, checkpoint, done)
    disk.delete(note_path(path))
    disk.sync_folder(posixpath.dirname(note_path(path)))
    return done


async def _check_stopped(path: str, rpc: str) -> list[str]:
    """Raise StoreMismatch if a broker answers at RPC; return warnings."""
    master = JavaMaster(rpc)
    try:
        _, end = await master.bounds()
        found = f"still answers, its log ends at {end:,}"
    except ConnectFailed as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            return []
        return [f"{error.message}: make sure that the Java broker has stopped"]
    except (ClientError, Unsupported) as error:
        found = f"is still there ({error.message})"
    finally:
        master.close()
    raise StoreMismatch(
        f"{path} is not promoted: the Java broker at {rpc} {found}. Stop it while `pocketmq follow` runs",
        path=path,
    )


def _compare(path: str, end: int, known: int | None) -> None:
    """Raise StoreMismatch unless the log, with its end at END, has all of the master's, with its end at KNOWN."""
    if known is None:
        raise StoreMismatch(
            f"{path} is not promoted: its log ends at {end:,}, and the end of the master's log is unknown. Stop"
            " the Java broker while `pocketmq follow` runs, or give --java-store PATH (its stopped store), or --end"
            " OFFSET (from `pocketmq inspect` there), or --accept-loss",
            path=path,
        )
    if known > end:
        raise StoreMismatch(
            f"{path} is not promoted: its log ends at {end:,}, and the master's at {known:,}. Start the Java broker"
            " again and run `pocketmq follow`, or give --java-store PATH, or --accept-loss",
            path=path,
        )
    if known < end:
        raise _other(path, f"its log ends at {end:,}, and the master's at {known:,}")


def _other(path: str, why: str) -> StoreMismatch:
    return StoreMismatch(
        f"{path} is not promoted: {why}. It is another log: check the arguments, or follow again with"
        " --set-aside",
        path=path,
    )


def _complete_log(path: str, store: MessageStore, java: StoppedStore, done: Promoted) -> None:
    """Append the rest of the log of JAVA to STORE. Raises StoreMismatch if it is another log."""
    newest = store.newest_record
    if newest is not None and not java.has(*newest):
        raise _other(
            path, f"the stopped store has a different record at {newest[0]:,}, the newest here"
        )
    store.follow()
    copied = java.copy_rest(store)
    store.lead()
    done.end = store.max_log_offset
    if copied:
        done.words.append(
            f"the last {copied:,} bytes of the log were copied from the stopped store"
        )


def _settle_offsets(disk: Disk, path: str, store: MessageStore, done: Promoted) -> None:
    """Move all groups and delay levels to the end of their queue if they are past it."""
    file = OffsetsFile(disk, path)
    offsets = file.load(state_tables.parse_consumer_offsets).value or state_tables.ConsumerOffsets()
    ends = {name: store.queue_bounds(*name)[1] for name in store.queue_names()}
    moved = 0
    for table in (offsets.offsets, offsets.pull_offsets):
        for key, queues in table.items():
            topic = key.partition("@")[0]
            for queue, offset in queues.items():
                end = ends.get((topic, queue), 0)
                if offset > end and (topic, queue) in ends:
                    queues[queue] = end
                    moved += 1
    if moved:
        file.save(state_tables.render_consumer_offsets(offsets))
        done.words.append(
            f"{counted(moved, 'offset')} of groups set to the end of the queue, which is smaller"
        )
    levels_file = StateFile(disk, path, "delayOffset.json")
    levels = levels_file.load(state_tables.parse_delay_offsets).value or state_tables.DelayOffsets()
    late = {
        level: ends[SCHEDULE_TOPIC, level - 1]
        for level, offset in levels.offsets.items()
        if offset > ends.get((SCHEDULE_TOPIC, level - 1), offset)
    }
    if late:
        levels_file.save(
            state_tables.render_delay_offsets(
                state_tables.DelayOffsets(levels.version, levels.offsets | late)
            )
        )
        done.words.append(
            f"{counted(len(late), 'delay level')} set to the end of the queue, which is smaller"
        )


def _complete_topics(disk: Disk, path: str, store: MessageStore, done: Promoted) -> None:
    """Give each topic with queues a configuration; system topics get theirs from the broker."""
    file = StateFile(disk, path, "topics.json")
    table = file.load(state_tables.parse_topics).value or state_tables.TopicTable()
    known = {name for name, _, _ in system_topic_queues(done.note.cluster, done.note.broker)}
    known |= table.topics.keys()
    queues: dict[str, int] = {}
    for topic, queue in store.queue_names():
        if topic not in known and not is_system_topic(topic):
            queues[topic] = max(queues.get(topic, 0), queue + 1)
    for topic, count in queues.items():
        table.topics[topic] = state_tables.TopicConfig(
            name=topic, read_queues=count, write_queues=count
        )
    if queues:
        file.save(state_tables.render_topics(table))
        done.words.append(f"topics added to the tables: {', '.join(sorted(queues))[:400]}")


def _begin_timers(disk: Disk, config: StoreConfig, checkpoint: bytes, done: Promoted) -> None:
    """Write the master's CHECKPOINT, and delete wheel and timer log: the next start rebuilds them from the log."""
    found = TimerCheckpoint.parse(checkpoint)
    if not found.last_read_ms:
        done.words.append("the master's timers were off: all scheduled messages are read again")
        return
    disk.delete_folder(config.timer_log_folder)
    if disk.exists(config.timer_wheel_path):
        disk.delete(config.timer_wheel_path)
    # Looks like a timer log that is missing: then only undelivered messages are added again.
    settled = replace(found, log_flushed=RECORD_SIZE)
    disk.make_folders(config.state_folder)
    data = settled.pack().ljust(CHECKPOINT_SIZE, b"\0")
    disk.write_atomically(config.timer_checkpoint_path, data)
