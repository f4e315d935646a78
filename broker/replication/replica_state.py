"""The role of a replica, its initial state, the master it follows, and its requested change of the metadata."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ...proto.gen import pocketmq_v1_pb2 as pb
from .log_epochs import Epochs
from .registry import ReplicaSetState


class ReplicaRole(Enum):
    """The role of a replica."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    STARTING = "starting"
    MASTER = "master"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """The state that a replica finds on its disk at a start."""

    epoch_seen: int = 0
    unclean: bool = False
    epochs: Epochs = field(default_factory=Epochs)
    #: The end of the log: of written bytes, and of bytes on disk.
    end: int = 0
    synced: int = 0
    confirm: int = 0
    #: The epoch of the master that confirmed it.
    confirm_epoch: int = 0
    min_offset: int = 0
    #: Identifies its store.
    store_id: str = ""


@dataclass(slots=True)
class Upstream:
    """The link over which a replica follows its master."""

    master: int
    link: int = 0
    begin: pb.FollowBegin | None = None
    #: Its log was cut as BEGIN demands: bytes may be sent.
    cut: bool = False
    #: The master's confirm offset, which may be after the end here; None: not known.
    confirm: int | None = None
    dialled_ms: int = 0
    heard_ms: int = 0


@dataclass(slots=True)
class PendingSet:
    """A compare-and-set without a known result."""

    cell: ReplicaSetState
    version: int
    in_flight: bool = True
    #: A similar request on the same version got no answer: a refusal may be caused by that one.
    doubtful: bool = False
    asked_ms: int = 0
