"""The files that make a store part of a replica set. Text; the first two are RocketMQ's of controller mode.

epochFileCheckpoint, in the store's root: the start of each epoch in the log.

    3                 number of entries
    1725254278        CRC-32 (31 bits) of all that follows, line ends included; 0: do not compare
    1-0               epoch, and the log offset at which it begins; both ascend
    …                 each line has its end; an epoch ends where the next begins, the last with the log

brokerIdentity, in the store's root, without a line end: `DefaultCluster#broker-a#1`; the id, 1 or more, never changes.

pocketmq/replica.json, PocketMQ's, the state of this replica for its next start:

    {"format":1,"epochSeen":7,"unclean":false,"synced":4096,"confirm":4096,"confirmEpoch":7,"bootId":"8c1f…",
     "storeId":"5a0e…"}

    epochSeen  the highest epoch that it has received; above 2147483646 it is impossible (see `has_epoch`)
    unclean    it may lack records that it once acknowledged
    synced     the log was on disk at least up to here when this was written
    confirm    consumers may read everything before it; it is on all in-sync replicas
    confirmEpoch  the epoch of the master that sent it; 0, or missing: not known
    bootId     of the machine's start in which it was written; "": unknown
    storeId    random, created with the store, to distinguish processes on different stores; "": not yet

Errors are ValueError, one sentence without the file's name. Source: replication.md §4.3.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias

#: Epoch and start of each, in order.
EpochStarts: TypeAlias = Sequence[tuple[int, int]]

EPOCHS_FILE: Final = "epochFileCheckpoint"
IDENTITY_FILE: Final = "brokerIdentity"
REPLICA_FILE: Final = "replica.json"

_EPOCH_MAX: Final = 2**31 - 1
#: The highest epoch that can be followed by another one.
EPOCH_SEEN_MAX: Final = _EPOCH_MAX - 1
#: The largest readable value of the epoch, so that a wrong one can be repaired: 19 digits.
_READ_MAX: Final = 10**19 - 1
_LONG_MAX: Final = 2**63 - 1
_FORMAT: Final = 1
_ENTRY: Final = re.compile(r"([0-9]{1,10})-([0-9]{1,19})")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")


class BrokerIdentity(NamedTuple):
    """The broker of a store: ID is the replica's in the set NAME."""

    cluster: str
    name: str
    id: int


class ReplicaNote(NamedTuple):
    """The content of replica.json."""

    epoch_seen: int = 0
    unclean: bool = False
    synced: int = 0
    confirm: int = 0
    confirm_epoch: int = 0
    boot_id: str = ""
    store_id: str = ""

    @property
    def has_epoch(self) -> bool:
        """Is the epoch possible? A set that had reached EPOCH_SEEN_MAX could not elect a master any more.

        Earlier versions wrote such epochs when a malformed request named one.
        """
        return self.epoch_seen <= EPOCH_SEEN_MAX


def render_epochs(epochs: EpochStarts) -> str:
    """Return the text of epochFileCheckpoint. Raises ValueError for entries that could not be read back."""
    lines = "".join(f"{epoch}-{start}\n" for epoch, start in epochs)
    text = f"{len(epochs)}\n{_crc(lines)}\n{lines}"
    parse_epochs(text)
    return text


def parse_epochs(text: str) -> EpochStarts:
    """Return the entries of epochFileCheckpoint."""
    head, lines = text.splitlines()[:2], text.splitlines()[2:]
    if len(head) < 2 or not all(map(_NUMBER.fullmatch, head)):
        raise ValueError("it does not begin with the number of entries and their CRC")
    count, crc = map(int, head)
    entries = [_entry(line) for line in lines]
    if len(entries) != count:
        raise ValueError(f"it has {len(entries)} entries, but its first line says {count}")
    found = _crc("".join(f"{line}\n" for line in lines))
    if crc not in (0, found):
        raise ValueError(f"the CRC of its entries is {found}, but its second line says {crc}")
    for (epoch, start), (later, behind) in pairwise(entries):
        if later <= epoch or behind <= start:
            raise ValueError(f"epoch {later} from {behind} does not follow {epoch} from {start}")
    return tuple(entries)


def _entry(line: str) -> tuple[int, int]:
    match = _ENTRY.fullmatch(line)
    epoch, start = (int(match[1]), int(match[2])) if match else (-1, -1)
    if not (0 <= epoch <= _EPOCH_MAX and 0 <= start <= _LONG_MAX):
        raise ValueError(f"{line[:40]!r} is not an epoch and its start, such as 7-4096")
    return epoch, start


def _crc(lines: str) -> int:
    """Return the result of RocketMQ's `UtilAll.crc32` for LINES."""
    return zlib.crc32(lines.encode()) & 0x7FFFFFFF


def render_identity(identity: BrokerIdentity) -> str:
    """Return the text of brokerIdentity. Raises ValueError for an identity that could not be read back."""
    text = "#".join(map(str, identity))
    if parse_identity(text) != identity:
        raise ValueError(f"{text[:80]!r} would be read as another identity")
    return text


def parse_identity(text: str) -> BrokerIdentity:
    """Return the content of brokerIdentity."""
    parts = text.strip().split("#")
    if len(parts) != 3 or not all(parts) or not _NUMBER.fullmatch(parts[2]):
        raise ValueError(
            f"{text[:80]!r} is not cluster#broker#id, such as DefaultCluster#broker-a#1"
        )
    return BrokerIdentity(parts[0], parts[1], int(parts[2]))


def render_note(note: ReplicaNote) -> str:
    """Return the text of replica.json. Raises ValueError for values that could not be read back."""
    fields = {
        "format": _FORMAT,
        "epochSeen": note.epoch_seen,
        "unclean": note.unclean,
        "synced": note.synced,
        "confirm": note.confirm,
        "confirmEpoch": note.confirm_epoch,
        "bootId": note.boot_id,
        "storeId": note.store_id,
    }
    text = json.dumps(fields, separators=(",", ":"))
    parse_note(text)
    if note.epoch_seen > _EPOCH_MAX:
        raise ValueError(f'"epochSeen" is {note.epoch_seen}, above the limit of {_EPOCH_MAX}')
    return text


def parse_note(text: str) -> ReplicaNote:
    """Return the content of replica.json."""
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("it is not a JSON object")
    if fields.get("format") != _FORMAT:
        raise ValueError(
            f'"format" is {fields.get("format")!r:.40}, but this version knows only {_FORMAT}'
        )
    unclean, boot_id = fields.get("unclean"), fields.get("bootId")
    if not isinstance(unclean, bool):
        raise ValueError(f'"unclean" is {unclean!r:.40}, not true or false')
    if not isinstance(boot_id, str):
        raise ValueError(f'"bootId" is {boot_id!r:.40}, not a string')
    store_id = fields.get("storeId", "")
    if not isinstance(store_id, str):
        raise ValueError(f'"storeId" is {store_id!r:.40}, not a string')
    return ReplicaNote(
        epoch_seen=_number(fields, "epochSeen", _READ_MAX),
        unclean=unclean,
        synced=_number(fields, "synced", _LONG_MAX),
        confirm=_number(fields, "confirm", _LONG_MAX),
        confirm_epoch=_number({"confirmEpoch": 0, **fields}, "confirmEpoch", _EPOCH_MAX),
        boot_id=boot_id,
        store_id=store_id,
    )


def _number(fields: dict[str, Any], name: str, most: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f'"{name}" is {value!r:.40}, not a number from 0 to {most}')
    return value
