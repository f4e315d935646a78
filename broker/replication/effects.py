"""Effects: what a replica wants done, in order.

The shell carries out the effects of one input one after the other, before it gives the next input. If one fails, the
later ones are dropped and the replica stops; it starts again from its disk. *Durable* effects are on disk before the
next one starts. Slow effects are answered by an input, which their docstrings name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ...proto.gen import pocketmq_v1_pb2 as pb
from .log_epochs import Epochs
from .registry import Cell, EndMark, LiveNode


@dataclass(frozen=True, slots=True)
class KeepState:
    """Durable: write `replica.json`: the highest epoch that was seen outlives whatever is done or said in it."""

    epoch_seen: int
    unclean: bool
    #: Why it has just become unclean.
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KeepEpochs:
    """Durable: write `epochFileCheckpoint`."""

    epochs: Epochs


@dataclass(frozen=True, slots=True)
class ReadRegistry:
    """Read the set's metadata, the live nodes and the mark, in this order: `registry_seen`, if all answers come."""


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Replace the metadata of VERSION: exactly one of `set_done`, `set_refused` and `set_unknown` answers."""

    cell: Cell
    version: int


@dataclass(frozen=True, slots=True)
class WriteMark:
    """Replace the mark of VERSION, None: there is none; `mark_written` answers."""

    mark: EndMark
    version: int | None


@dataclass(frozen=True, slots=True)
class Announce:
    """Set the live node of this replica."""

    node: LiveNode


@dataclass(frozen=True, slots=True)
class Follow:
    """Connect to MASTER: `connected` reports the link, unless connecting fails."""

    master: int
    address: str


@dataclass(frozen=True, slots=True)
class SendFrame:
    """Send FRAME over LINK, if it is still there."""

    link: int
    frame: pb.FollowRequest | pb.FollowReply


@dataclass(frozen=True, slots=True)
class StreamFrom:
    """Send the log from OFFSET on over LINK, as `FollowBytes`, and a heartbeat when there is none for a while."""

    link: int
    offset: int


@dataclass(frozen=True, slots=True)
class CloseLink:
    """End LINK and drop its later events; send the reason to the other side."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class AppendRaw:
    """Append DATA to the log as it is, at its end, OFFSET; IS_FAR: so much more is to come that no sync is due."""

    offset: int
    data: bytes = field(repr=False)
    is_far: bool = False


@dataclass(frozen=True, slots=True)
class CutLog:
    """Cut the log at END, or at its last valid record if that is None: `log_cut` reports where it ends."""

    end: int | None


@dataclass(frozen=True, slots=True)
class BeginAnew:
    """Rename the store, never delete it, and begin an empty log at BEGIN: `log_cut`."""

    begin: int
    reason: str


@dataclass(frozen=True, slots=True)
class BecomeMaster:
    """Take sends from now on, in EPOCH; the first one is appended at START."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """Take no more sends, and fail those that wait, as fenced: they may be tried again at the master of EPOCH."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class AnswerAcks:
    """Acknowledge what waits with acks="replicas" and ends at UP_TO or before: REPLICAS have it."""

    up_to: int
    replicas: int


@dataclass(frozen=True, slots=True)
class FailAcks:
    """What waits with acks="replicas" is in doubt: the set has become smaller than `min_in_sync`."""

    in_sync: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """Make complete records below OFFSET visible, for good."""

    offset: int


Effect: TypeAlias = (
    KeepState
    | KeepEpochs
    | ReadRegistry
    | CompareAndSet
    | WriteMark
    | Announce
    | Follow
    | SendFrame
    | StreamFrom
    | CloseLink
    | AppendRaw
    | CutLog
    | BeginAnew
    | BecomeMaster
    | StepDown
    | AnswerAcks
    | FailAcks
    | Confirm
)
