"""What replicas have on their devices once they have stopped: their log files, epochs and queues."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from pocketmq.proto.record import decode_record
from pocketmq.store.config import StoreConfig
from pocketmq.store.disk import Disk
from pocketmq.store.format.replica_files import EPOCHS_FILE, parse_epochs
from pocketmq.store.message_store import MessageStore
from pocketmq.store.os_disk import OsDisk

from ..crash.kill_campaign import body_of, number_of
from .history import ReplicaFiles, Stored, digest_of

_READ_BYTES = 1 << 20
_READ_MESSAGES = 1_000


def open_stopped(config: StoreConfig, disk: Disk | None = None) -> MessageStore:
    """Open the store of a broker that has stopped, without changing a byte."""
    return MessageStore.open(config, disk=disk or OsDisk(), now_ms=lambda: 0, read_only=True)


def queues_of(store: MessageStore, topic: str, queues: int) -> dict[int, Sequence[Stored]]:
    """Return the records of each of the QUEUES of TOPIC, from offset 0 on."""
    found: dict[int, Sequence[Stored]] = {}
    for queue in range(queues):
        rows: list[Stored] = []
        at, end = store.queue_bounds(topic, queue)
        assert at == 0, f"queue {queue} begins at {at}: the campaign deletes no file"
        while at < end:
            slices = store.read_queue(topic, queue, at, _READ_MESSAGES, _READ_BYTES)
            begin = 0
            for size in slices.sizes.tolist():
                rows.append(_stored(bytes(slices.records[begin : begin + size])))
                begin += size
            at = slices.next_offset
        found[queue] = rows
    return found


def _stored(record: bytes) -> Stored:
    body = decode_record(record, 0).body
    number = int(body[:12]) if body[:12].isdigit() else None
    sound = number is not None and body == body_of(number_of(body))
    return Stored(number if sound else None, digest_of(record))


def ends_of(queues: Mapping[int, Sequence[Stored]]) -> dict[int, int]:
    """Return where each queue ends."""
    return {queue: len(rows) for queue, rows in queues.items()}


def replica_files(replica: int, root: Path, end: int, confirm: int) -> ReplicaFiles:
    """Return what replica REPLICA has at ROOT, whose log ends at END, up to CONFIRM."""
    files: dict[str, str] = {}
    for path in sorted((root / "commitlog").iterdir()):
        if (size := confirm - int(path.name)) > 0:
            with path.open("rb") as file:
                files[path.name] = hashlib.sha256(file.read(size)).hexdigest()
    epochs = root / EPOCHS_FILE
    return ReplicaFiles(
        replica=replica,
        end=end,
        files=files,
        epochs=parse_epochs(epochs.read_text()) if epochs.exists() else (),
        set_aside=sorted(one.name for one in root.parent.glob(f"{root.name}.set-aside-*")),
    )
