"""The disk of a replica: its store, and next to it the replica's identity and state.

    <root>/brokerIdentity           which replica of which set the store belongs to; never changes
    <root>/epochFileCheckpoint      the epochs of its log
    <root>/pocketmq/replica.json    the highest epoch seen, whether it is unclean, its progress
    <root>/pocketmq/cut-off/…/      what was cut off the end of the log, each time, as a store of its own
    <root>.set-aside-<ms>           a quarantined store: never deleted by this program
    <root>.begins-anew              the next store while it is prepared; after a crash, either store is complete

`open` finds out whether the replica is *unclean*, that is, may lack data that it acknowledged. It is if the machine has
rebooted and the store was not closed (unless it flushes before it acknowledges), if its log ends below what was
flushed, or if its state is missing though the set had a master. Killing only the process loses nothing.

One call at a time except `keep_progress`, in any thread; all block.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from secrets import token_hex
from threading import Lock
from typing import Any, Final

from ...proto.errors import ConfigError, StoreError
from ...store.config import StoreConfig
from ...store.disk import Disk
from ...store.flush import Flusher
from ...store.format import replica_files
from ...store.message_store import MessageStore
from ...store.state_files import StateFile
from ..producers.producers import Producers
from .log_epochs import Epochs, EpochStart
from .replica_state import ReplicaState

logger = logging.getLogger(__name__)

_BOOT_ID_FILE: Final = "/proc/sys/kernel/random/boot_id"
_OWN_FOLDER: Final = "pocketmq"
#: Bytes that are copied at once.
_PIECE: Final = 1_048_576


def boot_id(disk: Disk) -> str:
    """Return an id of this start of the machine; "" if the system has none."""
    try:
        return disk.read(_BOOT_ID_FILE).decode("ascii", "replace").strip()
    except (OSError, StoreError):
        return ""


@dataclass(slots=True)
class _Files:
    """The small files below ROOT."""

    identity: StateFile
    epochs: StateFile
    note: StateFile

    @classmethod
    def at(cls, disk: Disk, root: str) -> _Files:
        return cls(
            StateFile(disk, root, replica_files.IDENTITY_FILE, ""),
            StateFile(disk, root, replica_files.EPOCHS_FILE, ""),
            StateFile(disk, root, replica_files.REPLICA_FILE, _OWN_FOLDER),
        )


class ReplicaDevice:
    """The files of the replica IDENTITY below CONFIG.path. BOOT identifies the start of the machine, "": unknown.

    PRODUCERS_OF creates the table of producers' sequences of a store.
    """

    def __init__(
        self,
        config: StoreConfig,
        identity: replica_files.BrokerIdentity,
        *,
        disk: Disk,
        unix_ms: Callable[[], int],
        boot: str,
        producers_of: Callable[[MessageStore], Producers],
    ) -> None:
        if config.log_path:
            raise ConfigError(
                f"store.log_path is {config.log_path}: a replica's log is stored in its store, which may have to be"
                " quarantined as a whole: leave it out",
                field="log_path",
            )
        self.config = config
        self.identity = identity
        self._disk = disk
        self._unix_ms = unix_ms
        self._boot = boot
        self._files = _Files.at(disk, config.path)
        self._note = replica_files.ReplicaNote()
        self._store: MessageStore | None = None
        self._producers_of = producers_of
        self._producers: Producers | None = None
        #: Writes the table of producers while this replica follows.
        self._saver = Flusher("pocketmq-save-producers")
        #: Progress may be written at any time.
        self._lock = Lock()

    @property
    def store(self) -> MessageStore:
        """The open store."""
        assert self._store is not None, "the store is not open"
        return self._store

    @property
    def producers(self) -> Producers:
        """The producers' sequences in the open store."""
        assert self._producers is not None, "the store is not open"
        return self._producers

    @property
    def is_open(self) -> bool:
        return self._store is not None

    def open(self, *, was_led: bool) -> ReplicaState:
        """Open the store and return the state. WAS_LED: the set has had a master.

        Raises ConfigError for the store of another replica, and errors of opening a store.
        """
        self._finish_opening_empty_store()
        self.check_identity()
        crashed = self._disk.exists(self.config.abort_path)
        self._open_store()
        self._saver.start()
        try:
            return self._look(crashed=crashed, was_led=was_led)
        except BaseException:
            self.close()
            raise

    def _look(self, *, crashed: bool, was_led: bool) -> ReplicaState:
        """Return the state on disk, and record that this replica has started."""
        store = self.store
        loaded = self._files.note.load(replica_files.parse_note)
        epochs = self._load_epochs()
        note = self._with_epoch(loaded.value or replica_files.ReplicaNote(), epochs)
        is_new = loaded.value is None
        is_missing = is_new and loaded.problem is None and was_led
        # A new replica, or one with a new disk: it is not a candidate before it has caught up.
        is_empty = is_missing and store.max_log_offset == 0
        if is_empty:
            logger.info("replica is empty, it can become master when it has caught up")
        lost_power = crashed and not is_new and (not self._boot or note.boot_id != self._boot)
        reasons = {
            "its state was damaged": loaded.problem is not None,
            "its state is missing": is_missing and not is_empty,
            "the machine's power was cut": lost_power and self.config.flush != "sync",
            f"its log ends at {store.max_log_offset:,}, and {note.synced:,} bytes were on disk": (
                store.max_log_offset < note.synced
            ),
        }
        for reason in (reason for reason, holds in reasons.items() if holds and not note.unclean):
            logger.warning(
                "replica is unclean, no candidate until it has caught up reason=%s", reason
            )
        unclean = note.unclean or is_empty or any(reasons.values())
        self._note = note._replace(
            unclean=unclean,
            boot_id=self._boot,
            synced=min(note.synced, store.max_log_offset),
            store_id=note.store_id or token_hex(8),
        )
        self._files.identity.save(replica_files.render_identity(self.identity))
        self._files.note.save(replica_files.render_note(self._note))
        return ReplicaState(
            epoch_seen=note.epoch_seen,
            unclean=unclean,
            epochs=epochs,
            end=store.max_log_offset,
            synced=store.flushed_offset,
            confirm=min(note.confirm, store.max_log_offset),
            confirm_epoch=note.confirm_epoch,
            min_offset=store.min_log_offset,
            store_id=self._note.store_id,
        )

    def _with_epoch(
        self, note: replica_files.ReplicaNote, epochs: Epochs
    ) -> replica_files.ReplicaNote:
        """Return NOTE; an impossible epoch is replaced by the last one of EPOCHS, which are those of the log.

        That is safe: before the replica follows or is a candidate, it takes the epoch in the set's metadata, which is
        that of the newest master, and compares its log with the mark.
        """
        if note.has_epoch:
            return note
        used = min(max(epochs.last, note.confirm_epoch), replica_files.EPOCH_SEEN_MAX)
        logger.warning(
            "epoch was too high and replaced path=%s epoch=%d limit=%d used=%d",
            self._files.note.path,
            note.epoch_seen,
            replica_files.EPOCH_SEEN_MAX,
            used,
        )
        return note._replace(epoch_seen=used)

    @property
    def store_id(self) -> str:
        """The id that the store got when it was created; "": it has none."""
        if self._note.store_id:
            return self._note.store_id
        found = self._files.note.load(replica_files.parse_note).value
        return "" if found is None else found.store_id

    def check_identity(self) -> None:
        """Raise ConfigError if the store belongs to another replica."""
        try:
            found = self._files.identity.load(replica_files.parse_identity).value
        except StoreError as error:
            raise ConfigError(error.message, **error.details) from error
        if found is None or found == self.identity:
            return
        mine = self.identity
        for what, theirs, ours, option in (
            ("cluster", found.cluster, mine.cluster, "broker.cluster"),
            ("set", found.name, mine.name, "--replica-set"),
            ("replica", found.id, mine.id, "--replica-id"),
        ):
            if theirs != ours:
                raise ConfigError(
                    f"{self.config.path} is the store of {what} {theirs!r}, but this broker is {what} {ours!r}:"
                    f" use another store, or start with {option} {theirs}",
                    path=self.config.path,
                )

    def _open_store(self) -> None:
        """Open the store as a follower, and restore the producers' sequences."""
        store = MessageStore.open(self.config, disk=self._disk, now_ms=self._unix_ms, replica=True)
        producers = self._producers_of(store)
        producers.follow(self._saver)
        store.events.followed.append(producers.followed)
        store.follow()
        self._store, self._producers = store, producers

    def follow(self) -> None:
        """Let the store take the bytes of a master, and update the table of producers from them."""
        self.producers.follow(self._saver)
        self.store.follow()

    def _load_epochs(self) -> Epochs:
        found = self._files.epochs.load(replica_files.parse_epochs).value or ()
        return Epochs(EpochStart(epoch, start) for epoch, start in found)

    def close(self) -> None:
        """Close the store. Idempotent."""
        with self._lock:
            store, self._store = self._store, None
            if store is not None:
                self._saver.stop()
                save_producers = self.producers.about_to_close()
                store.close()
                self._keep(synced=store.flushed_offset)
                save_producers()

    def keep_state(self, epoch_seen: int, unclean: bool) -> None:
        """Write the highest epoch seen, and whether the replica is unclean, to disk."""
        with self._lock:
            self._keep(epoch_seen=epoch_seen, unclean=unclean)

    def keep_progress(self, confirm: int, confirm_epoch: int) -> None:
        """Write how far the log is on disk and confirmed, if that has changed. Thread-safe."""
        with self._lock:
            if self._store is not None:
                self._keep(
                    synced=self._store.flushed_offset,
                    confirm=confirm,
                    confirm_epoch=confirm_epoch,
                )

    def _keep(self, **changes: Any) -> None:
        note = self._note._replace(**changes)
        if note != self._note:
            self._files.note.save(replica_files.render_note(note))
            self._note = note

    def keep_epochs(self, epochs: Epochs) -> None:
        """Write the epochs of the log."""
        self._files.epochs.save(replica_files.render_epochs(tuple(epochs)))

    def cut(self, end: int | None) -> None:
        """Cut the log at END, which is the begin of a record; None: drop an incomplete record."""
        store = self.store
        if end is None or end == store.max_log_offset:
            store.lead()
            store.follow()
            return
        with self._lock:
            self._copy_tail(store, end)
            # Do this first: a log that ends before `synced` counts as damaged.
            self._keep(synced=min(self._note.synced, end))
            store.truncate_to(end)
            self._open_store()

    def _copy_tail(self, store: MessageStore, end: int) -> None:
        """Copy the log after END to files with the names and sizes of the log's files; before END they are empty."""
        folder = f"{self.config.path}/{_OWN_FOLDER}/cut-off/{self._unix_ms()}-{end}"
        self._disk.make_folders(f"{folder}/commitlog")
        at, log_end = end, store.max_log_offset
        while at < log_end and (file := store.log.files.file_at(at)) is not None:
            stop = min(file.start + file.size, log_end)
            path = f"{folder}/commitlog/{file.start:020d}"
            with closing(self._disk.open_map(path, size=file.size, create=True)) as copy:
                for piece in range(at - file.start, stop - file.start, _PIECE):
                    copy.write(
                        piece, bytes(file.view[piece : min(piece + _PIECE, stop - file.start)])
                    )
                copy.sync()
            at = stop
        self._disk.sync_folder(f"{folder}/commitlog")
        logger.warning("log cut offset=%d bytes=%d kept=%s", end, log_end - end, folder)

    def open_empty_store(self) -> None:
        """Quarantine the store, unless its log is empty, and open an empty one in its place, without epochs."""
        if self.store.log.files.files:
            with self._lock:
                self._set_aside()

    def _set_aside(self) -> None:
        root = self.config.path
        note = self._note._replace(synced=0, confirm=0, unclean=True)
        with suppress(FileNotFoundError):
            self._disk.delete_folder(self._next_root)
        files = _Files.at(self._disk, self._next_root)
        files.note.save(replica_files.render_note(note))
        files.identity.save(replica_files.render_identity(self.identity))
        try:
            self.store.close()
        except StoreError as error:  # It is not needed any more; the next open would recover it.
            logger.warning("store not closed cleanly path=%s reason=%s", root, error.message)
        aside = f"{root}.set-aside-{self._unix_ms()}"
        self._disk.rename(root, aside)
        self._finish_opening_empty_store()
        self._note = note
        logger.warning("store quarantined path=%s quarantine=%s", root, aside)
        self._open_store()

    @property
    def _next_root(self) -> str:
        return f"{self.config.path}.begins-anew"

    def _finish_opening_empty_store(self) -> None:
        """Move the prepared store into the place of the quarantined one, if a crash came in between."""
        root = self.config.path
        if self._disk.exists(self._next_root):
            if self._disk.exists(root):
                self._disk.delete_folder(self._next_root)
                return
            self._disk.rename(self._next_root, root)
            self._disk.sync_folder(root.rpartition("/")[0] or ".")
            self._files = _Files.at(self._disk, root)
