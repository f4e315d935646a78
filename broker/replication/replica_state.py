"""The role of a replica, its initial state, the master it follows, and the metadata that it asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ...proto.gen import pocketmq_v1_pb2 as pb
from .log_epochs import Epochs
from .registry import Cell


class ReplicaRole(Enum):
    """What a replica is."""

    FOLLOWER = "follower"
    STANDING = "standing"
    STARTING = "starting"
    MASTER = "master"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """What a replica finds on its device when it starts."""

    epoch_seen: int = 0
    unclean: bool = False
    epochs: Epochs = field(default_factory=Epochs)
    #: The ends of the log: of what is written, and of what is on disk.
    end: int = 0
    synced: int = 0
    confirm: int = 0
    #: The epoch of the master that said so.
    confirm_epoch: int = 0
    min_offset: int = 0
    #: Identifies its store.
    store_id: str = ""


@dataclass(slots=True)
class Upstream:
    """The link over which a master is followed."""

    master: int
    link: int = 0
    begin: pb.FollowBegin | None = None
    #: Its log was cut as BEGIN wants it: bytes may come.
    cut: bool = False
    #: The master's confirm offset, which may be above the end here; None: it has not said.
    confirm: int | None = None
    dialled_ms: int = 0
    heard_ms: int = 0


@dataclass(slots=True)
class PendingSet:
    """A compare-and-set that is not known to have been applied or refused."""

    cell: Cell
    version: int
    in_flight: bool = True
    #: One like it, or another on the same version, was not answered: a refusal may be the doing of that one.
    doubtful: bool = False
    asked_ms: int = 0
