"""A store that follows the log of a Java broker over RocketMQ's HA protocol, byte by byte, until it is stopped.

One connection carries the log, another the requests for everything else (master.py). If one ends, both are opened again
and the logs are compared: by epochs in controller mode, else by the newest record. If they differ, nothing is changed;
OtherHistory says what to do. In controller mode the follower is a learner without a vote, and no send waits for it. In
the classic mode it counts as a slave for SYNC_MASTER.

The tables are applied once the log is as long as it was when they were read. A clean stop is recognized by what the
broker does: it closes its ports for requests, and sends its log for three more seconds without appending. Memory: one
frame of 4 MiB, one chunk of 1 MiB.
"""

from __future__ import annotations

import asyncio
import logging
import posixpath
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from ...broker.messages.appender import synced
from ...proto import errors
from ...proto.remoting.client import open_tcp
from ...proto.slave_protocol import (
    AutoSwitchFrames,
    ClassicFrames,
    Handshake,
    LogFrame,
    classic_report,
    consistent_end,
    greeting,
    report,
)
from ...store.config import StoreConfig, apply_apache_settings
from ...store.consume_queues import batch_topics
from ...store.disk import Disk
from ...store.format.replica_files import EPOCHS_FILE, parse_epochs, render_epochs
from ...store.message_store import MessageStore
from ...store.offsets_file import OFFSETS_FILE, OffsetsFile
from ...store.state_files import StateFile
from .master import TOPICS_FILE, JavaMaster, MasterIdentity, MasterTables
from .note import FollowNote, read_note, write_note

logger = logging.getLogger(__name__)

#: Brokers give ids from 1 on: this one is unused.
LEARNER_ID: Final = 1 << 40
_CHUNK: Final = 1 << 20
_CONNECT_S: Final = 5.0
_PAUSE_S: Final = 0.2
_PAUSE_MAX_S: Final = 3.0
#: RocketMQ's master lets go of a slave from which it has read nothing for 20 s, and a slave of its master.
_REPORT_S: Final = 3.0
_SILENCE_MAX_S: Final = 20.0
#: How often the tables are asked for: less often where that takes long, but so often.
_TABLES_S: Final = 1.0
_TABLES_MAX_S: Final = 5.0
_LOOK_S: Final = 0.1
#: Of the three seconds for which a master that stops continues sending: so long its port for requests was closed, and
#: so long nothing more came.
STOPPING_S: Final = 1.5
QUIET_S: Final = 1.0


class OtherHistory(errors.StoreMismatch):
    """The log of the master is not the one that the store has the beginning of."""


class JavaFollower:
    """Follows the broker that sends its log at ADDRESS and answers at RPC, into the store PATH; NOW_MS: wall clock."""

    def __init__(
        self,
        path: str,
        address: str,
        rpc: str,
        *,
        disk: Disk,
        now_ms: Callable[[], int],
    ) -> None:
        self._path = path
        self._address = address
        self._disk = disk
        self._now_ms = now_ms
        self._master = JavaMaster(rpc)
        self._store: MessageStore | None = None
        self._note: FollowNote | None = read_note(disk, path)
        self._config = StoreConfig(path=path)
        self._tables: MasterTables | None = None
        self._written: dict[str, str] = {}
        self._epochs: tuple[tuple[int, int], ...] = ()
        self._batch_topics: frozenset[str] = frozenset()
        self._writer: asyncio.StreamWriter | None = None
        self._closed_at = 0
        #: Does the master know from where on the log is wanted?
        self._is_asked = False
        #: When the port for requests was first found closed, and when bytes of the log came last; of the loop's clock.
        self._refused_s: float | None = None
        self._bytes_s = 0.0
        #: Bytes that were taken, and why nothing is just now ("": it is).
        self.taken_bytes = 0
        self.trouble = "not connected yet"

    @property
    def end(self) -> int:
        """Where the store's log ends, or ended when it was closed."""
        return self._closed_at if self._store is None else self._store.max_log_offset

    @property
    def master_end(self) -> int:
        """Where the master's log ended when it was last asked, or later."""
        return max(self.end, 0 if self._note is None else self._note.master_end)

    @property
    def stopped_at(self) -> int | None:
        """Where the log ended when the master stopped in order, and all of it is here; None: it has not."""
        return None if self._note is None else self._note.stopped_at

    @property
    def note(self) -> FollowNote | None:
        return self._note

    async def run(self) -> None:
        """Follow until cancelled. Raises what only a person can mend: StoreMismatch, CorruptRecord, DiskFailure."""
        pause_s = _PAUSE_S
        try:
            while True:
                before = self.taken_bytes
                try:
                    await self._follow_once()
                except errors.StoreFull as error:
                    self._trouble(error.message)
                except (errors.ClientError, errors.Unsupported, OSError) as error:
                    self._trouble(str(error))
                pause_s = _PAUSE_S if self.taken_bytes > before else min(2 * pause_s, _PAUSE_MAX_S)
                await asyncio.sleep(pause_s)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of everything; the store is closed cleanly. Twice is once."""
        self._hang_up()
        self._master.close()
        if self._store is not None:
            store, self._store = self._store, None
            self._closed_at = store.max_log_offset
            store.close()

    def _trouble(self, why: str) -> None:
        if why != self.trouble:
            logger.info("not following", extra={"reason": why})
        self.trouble = why

    async def _follow_once(self) -> None:
        """Connect, compare, and take what comes until a connection ends."""
        identity = await self._identify()
        if self._store is None:
            await self._open(identity)
        begin = 0 if identity.auto_switch else await self._compare_newest()
        reader, self._writer = await open_tcp(self._address, _CONNECT_S)
        self._refused_s = None
        self._is_asked = False
        self._bytes_s = asyncio.get_running_loop().time()
        tasks = [asyncio.ensure_future(self._take(reader, begin, identity.auto_switch))]
        try:
            tasks += [asyncio.ensure_future(one) for one in (self._tend(), self._ask())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._hang_up()

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _identify(self) -> MasterIdentity:
        """Return the identity of the master that the store follows."""
        identity = await self._master.identity()
        note = self._note
        if note is None:
            return identity
        if (note.cluster, note.broker) != (identity.cluster, identity.broker):
            raise errors.StoreMismatch(
                f"{self._path} follows {note.broker} of {note.cluster}, and {self._master.address} is"
                f" {identity.broker} of {identity.cluster}. Give the address of the first, or another folder",
                path=self._path,
            )
        for name in ("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue"):
            if note.settings.get(name) != identity.settings.get(name):
                raise errors.StoreMismatch(
                    f"{self._path} has files of {name}={note.settings.get(name)}, the master of"
                    f" {identity.settings.get(name)}: follow into another folder",
                    path=self._path,
                )
        return identity

    async def _open(self, identity: MasterIdentity) -> None:
        """Open the store, or make it. Topics come first: they say which queues are of batches."""
        if self._note is None:
            self._note = FollowNote(
                address=self._address,
                rpc=self._master.address,
                cluster=identity.cluster,
                broker=identity.broker,
                auto_switch=identity.auto_switch,
                settings=identity.settings,
            )
        self._save_note(
            address=self._address, rpc=self._master.address, auto_switch=identity.auto_switch
        )
        self._config = apply_apache_settings(
            StoreConfig(path=self._path, scrub_bytes_per_s=0), identity.settings
        )
        self._write_table(TOPICS_FILE, await self._master.topics())
        self._drop_plain_queues()
        self._open_store()

    def _drop_plain_queues(self) -> None:
        """Delete plain queues of topics that have batch queues: opening makes those of the log."""
        for topic in batch_topics(self._disk, self._config.state_folder):
            self._disk.delete_folder(posixpath.join(self._config.queue_folder, topic))

    def _open_store(self) -> None:
        loop = asyncio.get_running_loop()
        store = MessageStore.open(self._config, disk=self._disk, now_ms=self._now_ms, replica=True)
        store.start(loop.call_soon_threadsafe)
        store.follow()
        store.events.flushed.append(lambda offset: self._report())
        self._store = store
        self._batch_topics = batch_topics(self._disk, self._config.state_folder)
        epochs = self._epochs_file().load(parse_epochs).value or ()
        self._epochs = tuple((epoch, start) for epoch, start in epochs)

    def _save_note(self, **changes: object) -> None:
        assert self._note is not None, "the master was identified"
        changed = replace(self._note, **changes)  # type: ignore[arg-type]
        if changed != self._note or read_note(self._disk, self._path) is None:
            write_note(self._disk, self._path, changed)
        self._note = changed

    @property
    def _opened(self) -> MessageStore:
        assert self._store is not None, "it is opened before anything comes"
        return self._store

    async def _compare_newest(self) -> int:
        """Begin the log, or see that the master's continues where it ends; return where that begins.

        Raises OtherHistory.
        """
        store = self._opened
        begin, end = await self._master.bounds()
        self._save_note(master_end=end)
        own = store.max_log_offset
        if store.newest_record is None and not own:
            await self._begin(begin, end)
            return begin
        if end < own:
            raise self._other(f"the master's log ends at {end:,}, and the store's at {own:,}")
        if begin > own:
            raise self._other(
                f"the master has deleted its log below {begin:,}, and the store's ends at {own:,}"
            )
        newest = store.newest_record
        theirs = None if newest is None else await self._master.record(newest[0])
        if newest is not None and begin <= newest[0] and theirs != newest[1]:
            raise self._other(f"the master has another record at {newest[0]:,}, the newest here")
        return begin

    def _other(self, why: str) -> OtherHistory:
        return OtherHistory(
            f"{self._path} cannot continue to follow: {why}; --set-aside renames the store, and starts an empty one",
            path=self._path,
        )

    async def _begin(self, begin: int, end: int) -> None:
        """Take the first record of the master's log, if that is at 0.

        A slave that says that it has nothing is sent the newest file alone; one that has a record, what follows.
        """
        if begin == 0 < end:
            record = await self._master.record(0)
            if record is not None:
                self._append(record, 0)

    def _truncate(self, handshake: Handshake) -> None:
        """Cut what the master does not have. Raises OtherHistory where nothing is in common."""
        store = self._opened
        own = store.max_log_offset
        if not self._epochs and not own:
            return
        end = consistent_end(self._epochs, own, handshake.epochs, handshake.end)
        if end is None or end < store.min_log_offset:
            raise self._other("no epoch of its log is one of the master's")
        if end == own:
            return
        logger.warning("log cut", extra={"offset": end, "was": own})
        try:
            store.truncate_to(end)
        except errors.InvalidArgument as error:
            raise self._other(error.message) from None
        self._store = None
        self._open_store()

    def _epochs_file(self) -> StateFile:
        return StateFile(self._disk, self._path, EPOCHS_FILE, "")

    def _enter_epoch(self, frame: LogFrame) -> None:
        """Note the epoch of FRAME before its bytes, if it is a new one."""
        entry = (frame.epoch, frame.epoch_start)
        if self._epochs and self._epochs[-1] == entry:
            return
        kept = tuple(one for one in self._epochs if one[0] < entry[0] and one[1] < entry[1])
        self._epochs = (*kept, entry)
        self._epochs_file().save(render_epochs(self._epochs))

    async def _take(self, reader: asyncio.StreamReader, begin: int, auto_switch: bool) -> None:
        """Take what the master, whose log begins at BEGIN, sends until it closes."""
        frames: ClassicFrames | AutoSwitchFrames
        if auto_switch:
            frames = AutoSwitchFrames()
            self._send(greeting(LEARNER_ID, learner=True))
        else:
            frames = ClassicFrames()
            self._send(classic_report(self._opened.raw_end or begin))
            self._is_asked = True
        self.trouble = ""
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(_SILENCE_MAX_S):
                    data = await reader.read(_CHUNK)
            except TimeoutError:
                raise errors.ConnectFailed(
                    f"{self._address} has sent nothing for {_SILENCE_MAX_S:.0f} s",
                    address=self._address,
                ) from None
            if not data:
                break
            try:
                found = frames.feed(data)
            except ValueError as error:
                raise errors.StoreMismatch(
                    f"{self._address} does not send the log of a Java broker ({error}). Give its haListenPort",
                    address=self._address,
                ) from None
            if any(isinstance(one, LogFrame) and one.data for one in found):
                self._bytes_s = loop.time()
            self._put(found)
        await self._note_stop(loop.time())
        raise errors.ConnectFailed(
            f"{self._address} has closed the connection", address=self._address
        )

    def _put(self, found: list[LogFrame] | list[LogFrame | Handshake]) -> None:
        """Append what was FOUND, together what goes together."""
        parts: list[bytes] = []
        begin = end = 0
        for one in found:
            if isinstance(one, Handshake):
                self._truncate(one)
                self._save_note(master_end=one.end)
                self._send(report(self._opened.raw_end))
                self._is_asked = True
                continue
            if not one.data:
                continue
            if one.epoch:
                self._enter_epoch(one)
            size = self._config.log_file_size_bytes
            if parts and (one.offset != end or one.offset % size == 0):
                self._append(b"".join(parts), begin)
                parts = []
            if not parts:
                begin = one.offset
            parts.append(one.data)
            end = one.offset + len(one.data)
        if parts:
            self._append(b"".join(parts), begin)

    def _append(self, data: bytes, offset: int) -> None:
        store = self._opened
        if offset != store.raw_end and (store.raw_end or offset % self._config.log_file_size_bytes):
            raise errors.ConnectFailed(
                f"{self._address} sent data for offset {offset:,}, but the log here ends at {store.raw_end:,}",
                address=self._address,
            )
        if self.stopped_at is not None:
            self._save_note(stopped_at=None)
        store.append_raw(data, offset, zlib.crc32(data))
        self.taken_bytes += len(data)
        store.flush_soon()

    def _send(self, data: bytes) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(data)

    def _report(self) -> None:
        """Tell the master how much of its log this device has, once it knows where to begin."""
        if self._store is None or self._note is None or not self._is_asked:
            return
        end = min(self._store.flushed_offset, self._store.max_log_offset)
        if end > 0:
            self._send(report(end) if self._note.auto_switch else classic_report(end))

    async def _tend(self) -> None:
        """Flush what is due, and report every now and then."""
        loop = asyncio.get_running_loop()
        reported_s = loop.time()
        while True:
            await asyncio.sleep(self._config.flush_interval_ms / 1000)
            store = self._opened
            store.tick()
            now_s = loop.time()
            if now_s - reported_s >= _REPORT_S:
                reported_s = now_s
                self._report()

    async def _ask(self) -> None:
        """Keep the tables up to date, and see whether the master is there."""
        loop = asyncio.get_running_loop()
        took_s = 0.0
        asked_s = -_TABLES_S
        while True:
            self._apply_tables()
            due = loop.time() - asked_s >= min(max(_TABLES_S, 4 * took_s), _TABLES_MAX_S)
            if (self._tables is None and due) or not self._master.is_connected:
                asked_s = loop.time()
                await self._ask_once()
                took_s = loop.time() - asked_s
            await asyncio.sleep(_LOOK_S)

    async def _ask_once(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            tables = await self._master.tables()
            begin, _ = await self._master.bounds()
            newest = self._opened.newest_record
            theirs = None if newest is None else await self._master.record(newest[0])
        except errors.ConnectFailed as error:
            if isinstance(error.__cause__, ConnectionRefusedError) and self._refused_s is None:
                self._refused_s = loop.time()
            return
        except errors.ClientError:
            return
        self._refused_s = None
        self._tables = self._tables or tables
        self._save_note(master_end=tables.end)
        store = self._opened
        if begin > store.raw_end and store.raw_end:
            raise self._other(
                f"the master has deleted its log below {begin:,}, and the store's ends at {store.raw_end:,}"
            )
        if newest is not None and theirs not in (None, newest[1]):
            raise self._other(
                f"what {self._address} sends is not the log of the broker at {self._master.address}"
            )
        if theirs is not None:
            store.delete_before(begin)

    def _apply_tables(self) -> None:
        """Write the tables that were read, when as much of the log is on disk as the master had then."""
        tables, store = self._tables, self._opened
        if tables is None or min(store.flushed_offset, store.max_log_offset) < tables.end:
            return
        for name, text in tables.files.items():
            self._write_table(name, text)
        self._tables = None
        self._save_note(tables_end=tables.end, timer_checkpoint=tables.timer_checkpoint.hex())
        known = self._batch_topics
        self._batch_topics = batch_topics(self._disk, self._config.state_folder)
        if (
            self._batch_topics - known
        ):  # Their messages may have come before: the queues are rebuilt.
            self._store = None
            store.close()
            raise errors.ConnectFailed(
                f"{self._address}: a topic with batch queues is new: {self._path} is opened again"
            )

    def _write_table(self, name: str, text: str) -> None:
        """Write the state file NAME, if it does not hold TEXT yet."""
        if self._written.get(name) != text:
            file = (
                OffsetsFile(self._disk, self._path)
                if name == OFFSETS_FILE
                else StateFile(self._disk, self._path, name)
            )
            file.save(text)
            self._written[name] = text

    async def _note_stop(self, now_s: float) -> None:
        """Note the end of the log if the master, which has closed the connection, has stopped in order."""
        store = self._opened
        if self._refused_s is None or now_s - self._refused_s < STOPPING_S:
            return
        whole = store.raw_end == store.max_log_offset >= self.master_end
        if whole and now_s - self._bytes_s >= QUIET_S:
            await synced(store, store.max_log_offset)
            self._apply_tables()
            self._save_note(stopped_at=store.max_log_offset)
            logger.info("the master has stopped in order", extra={"end": store.max_log_offset})


def set_aside(disk: Disk, path: str, now_ms: int) -> str:
    """Rename the store PATH, which must not be open; return its new name. Nothing is deleted."""
    target = f"{path}.set-aside-{now_ms}"
    disk.rename(path, target)
    return target
