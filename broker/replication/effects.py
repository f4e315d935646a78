"""Effects: the actions that a replica requests, in order.

The shell executes all effects of one input before it gives the next input. If one fails, the later ones are dropped and
the replica stops; it starts again from its disk. *Durable* effects are on disk before the next one starts. Slow effects
are answered by an input, which their docstrings name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from ...proto.gen import pocketmq_v1_pb2 as pb
from .log_epochs import Epochs
from .registry import EndMark, LiveNode, ReplicaSetState


@dataclass(frozen=True, slots=True)
class PersistState:
    """Durable: write `replica.json`, so that the highest epoch seen survives before anything is done in it."""

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
    """Read the set's metadata, the live nodes and the mark, in this order; `registry_seen` gets all three answers."""


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Replace the metadata of VERSION. Exactly one of `set_done`, `set_refused` and `set_unknown` answers."""

    cell: ReplicaSetState
    version: int


@dataclass(frozen=True, slots=True)
class WriteMark:
    """Replace the mark of VERSION (None: there is none); `mark_written` answers."""

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
    """Send FRAME over LINK, if it is still open."""

    link: int
    frame: pb.FollowRequest | pb.FollowReply


@dataclass(frozen=True, slots=True)
class SendLogFrom:
    """Send the log from OFFSET on over LINK, as `FollowBytes`, with heartbeats when there is nothing to send."""

    link: int
    offset: int


@dataclass(frozen=True, slots=True)
class CloseLink:
    """End LINK and drop its later events; send the reason to the other side."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class AppendRaw:
    """Append DATA unchanged at OFFSET, the end of the log. IS_FAR: the log is so far behind that no sync is due."""

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
    """Accept sends from now on, in EPOCH; the first one is appended at START."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class StepDown:
    """Accept no more sends, and fail the waiting ones as fenced: clients may retry them at the master of EPOCH."""

    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class AnswerAcks:
    """Acknowledge sends with acks="replicas" that end at UP_TO or before: REPLICAS have them."""

    up_to: int
    replicas: int


@dataclass(frozen=True, slots=True)
class FailAcks:
    """Fail sends that wait with acks="replicas": the in-sync set has become smaller than `min_in_sync`."""

    in_sync: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """Make complete records below OFFSET visible to consumers, for good."""

    offset: int


Effect: TypeAlias = (
    PersistState
    | KeepEpochs
    | ReadRegistry
    | CompareAndSet
    | WriteMark
    | Announce
    | Follow
    | SendFrame
    | SendLogFrom
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
