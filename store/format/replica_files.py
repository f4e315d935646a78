"""The files that make a store one of a replica set. Text; the first two are Apache's of controller mode.

epochFileCheckpoint, at the store's root: which master began to write where.

    3                 number of entries
    1725254278        CRC-32 (31 bits) of all that follows, line ends included; 0: not to be compared
    1-0               epoch, and the log offset at which it begins; both ascend
    …                 every line has its end; an epoch ends where the next begins, the last with the log

brokerIdentity, at the store's root, without a line end: `DefaultCluster#broker-a#1`, the id from 1 on, for good.

pocketmq/replica.json, ours, what this replica has to know after a restart:

    {"format":1,"epochSeen":7,"unclean":false,"synced":4096,"confirm":4096,"confirmEpoch":7,"bootId":"8c1f…",
     "storeId":"5a0e…"}

    epochSeen  the highest epoch that it was ever told of; above 2147483646 it cannot be (see `has_epoch`)
    unclean    it may lack what it once said it had
    synced     so much of the log, at least, was on the device when this was written
    confirm    what stands below may be seen by consumers, and is on all replicas that count
    confirmEpoch  the epoch of the master that said so; 0, or missing: not known
    bootId     of the machine's start in which it was written; "": unknown
    storeId    drawn when the store began, by which processes on different stores are told apart; "": not yet

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
#: The highest epoch behind which there is room for that of another master.
EPOCH_SEEN_MAX: Final = _EPOCH_MAX - 1
#: What is read of the epoch that was seen, so that it can be repaired: 19 digits.
_READ_MAX: Final = 10**19 - 1
_LONG_MAX: Final = 2**63 - 1
_FORMAT: Final = 1
_ENTRY: Final = re.compile(r"([0-9]{1,10})-([0-9]{1,19})")
_NUMBER: Final = re.compile(r"[0-9]{1,19}")


class BrokerIdentity(NamedTuple):
    """Which broker the store is of: ID is the replica's in the set NAME."""

    cluster: str
    name: str
    id: int


class ReplicaNote(NamedTuple):
    """What replica.json says."""

    epoch_seen: int = 0
    unclean: bool = False
    synced: int = 0
    confirm: int = 0
    confirm_epoch: int = 0
    boot_id: str = ""
    store_id: str = ""

    @property
    def has_epoch(self) -> bool:
        """Can the epoch be? A set that had reached EPOCH_SEEN_MAX could elect no master any more.

        Earlier versions wrote such epochs when a malformed request named one.
        """
        return self.epoch_seen <= EPOCH_SEEN_MAX


def render_epochs(epochs: EpochStarts) -> str:
    """Return the text of epochFileCheckpoint. Raises ValueError for what could not be read back."""
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
        raise ValueError(f"it has {len(entries)} entries, and says {count}")
    found = _crc("".join(f"{line}\n" for line in lines))
    if crc not in (0, found):
        raise ValueError(f"the CRC of its entries is {found}, and it says {crc}")
    for (epoch, start), (later, behind) in pairwise(entries):
        if later <= epoch or behind <= start:
            raise ValueError(f"epoch {later} from {behind} does not follow {epoch} from {start}")
    return tuple(entries)


def _entry(line: str) -> tuple[int, int]:
    match = _ENTRY.fullmatch(line)
    epoch, start = (int(match[1]), int(match[2])) if match else (-1, -1)
    if not (0 <= epoch <= _EPOCH_MAX and 0 <= start <= _LONG_MAX):
        raise ValueError(f"{line[:40]!r} is no epoch and start, as 7-4096 is")
    return epoch, start


def _crc(lines: str) -> int:
    """Return Apache's `UtilAll.crc32` of LINES."""
    return zlib.crc32(lines.encode()) & 0x7FFFFFFF


def render_identity(identity: BrokerIdentity) -> str:
    """Return the text of brokerIdentity. Raises ValueError for what could not be read back."""
    text = "#".join(map(str, identity))
    if parse_identity(text) != identity:
        raise ValueError(f"{text[:80]!r} would be read as another identity")
    return text


def parse_identity(text: str) -> BrokerIdentity:
    """Return what brokerIdentity says."""
    parts = text.strip().split("#")
    if len(parts) != 3 or not all(parts) or not _NUMBER.fullmatch(parts[2]):
        raise ValueError(f"{text[:80]!r} is not cluster#broker#id, as DefaultCluster#broker-a#1 is")
    return BrokerIdentity(parts[0], parts[1], int(parts[2]))


def render_note(note: ReplicaNote) -> str:
    """Return the text of replica.json. Raises ValueError for what could not be read back."""
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
    """Return what replica.json says."""
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")
    if fields.get("format") != _FORMAT:
        raise ValueError(
            f'"format" is {fields.get("format")!r:.40}, and this program knows {_FORMAT}'
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
