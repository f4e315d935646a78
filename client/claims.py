"""Checks that a reply matches its request. If not, the client raises BadReply, and does not hang or crash.

BadReply names the server and the mismatch. Numbers must be in the range that a PocketMQ server can send. A wrong number
within this range is not detected.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ..proto.errors import BadReply
from ..proto.gen import pocketmq_v1_pb2 as pb

if TYPE_CHECKING:
    from .received_message import FetchedRun

#: Maximum number of queues of a topic on one broker, as name servers accept it, and on all brokers.
QUEUES_MAX: Final = 65_536
TOPIC_QUEUES_MAX: Final = 1_000_000
LEASE_MOST_MS: Final = 600_000
GENERATION_MAX: Final = 1 << 53
_OFFSET_MAX: Final = (1 << 63) - 1


class _Numbered(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def queue(self) -> int: ...


def _check(fits: bool, server: str, what: str) -> None:
    if not fits:
        raise BadReply(
            f"the reply of {server} does not match the request: {what}. Is it a PocketMQ server of this version?",
            server=server,
        )


def check_route(topic: str, reply: pb.RouteReply, server: str) -> None:
    """Check REPLY to a request for the route of TOPIC."""
    _check(len(reply.routes) <= 1, server, f"{len(reply.routes)} routes for one topic")
    for route in reply.routes:
        _check(route.topic == topic, server, f"a route of {route.topic[:64]!r}, not of {topic!r}")
        counts = [n for data in route.queues for n in (data.read_queues, data.write_queues)]
        worst = max(counts, default=0)
        _check(
            min(counts, default=0) >= 0 and worst <= QUEUES_MAX and sum(counts) <= TOPIC_QUEUES_MAX,
            server,
            f"{worst} queues of topic {topic!r} on one broker, {sum(counts)} in all; the limits are"
            f" {QUEUES_MAX} and {TOPIC_QUEUES_MAX}",
        )


def check_produced(run: pb.ProduceRun, reply: pb.ProduceReply, server: str) -> None:
    """Check REPLY, which acknowledges RUN."""
    count = len(run.sizes)
    for field, found in (
        ("log offsets", reply.log_offsets),
        ("queue offsets", reply.queue_offsets),
        ("due times", reply.due_ms),
    ):
        _check(
            len(found) in (0, count),
            server,
            f"{len(found)} {field} for a batch of {count} messages",
        )
    _check(
        0 <= reply.repeated_count <= count,
        server,
        f"{reply.repeated_count} duplicates in a batch of {count} messages",
    )
    lowest = min((*reply.queue_offsets, *reply.log_offsets, *reply.due_ms), default=0)
    firsts = reply.first_queue_offset, reply.first_log_offset
    last = max(reply.first_queue_offset + count, reply.first_log_offset + len(run.records))
    _check(
        min(lowest, *firsts) >= -1 and last <= _OFFSET_MAX,
        server,
        f"offsets {firsts[0]} and {firsts[1]} for a batch of {count} messages",
    )


def check_fetched(
    request: pb.FetchRequest, reply: pb.FetchReply, run: FetchedRun | None, server: str
) -> None:
    """Check REPLY, and RUN, the messages in it, against REQUEST."""
    begin, end, high = request.offset, reply.next_offset, reply.max_offset
    _check(
        min(end, reply.filtered_count, reply.lost_count, reply.min_offset) >= 0,
        server,
        f"a fetch from {begin} up to {end} with {reply.filtered_count} messages filtered and {reply.lost_count} lost",
    )
    _check(end <= max(begin, high), server, f"a fetch up to {end}, and the queue ends at {high}")
    if run is None or not len(run):
        return
    columns = run.columns
    offsets = columns.queue_offset
    _check(
        len(offsets) < 2 or bool((offsets[1:] > offsets[:-1]).all()),
        server,
        f"queue offsets that do not rise, after offset {begin}",
    )
    first, last = int(offsets[0]), int(offsets[-1])
    _check(first >= 0 and last < end, server, f"messages {first} to {last} in a fetch up to {end}")
    _check(
        bool((columns.queue_id == request.queue).all()) and run.topic == request.topic,
        server,
        f"messages that are not all of queue {request.queue} of {request.topic!r}",
    )


def check_places(asked: Sequence[_Numbered], found: Sequence[_Numbered], server: str) -> None:
    """Check that the queues of a reply, FOUND, are those that were ASKED for, in order."""
    _check(len(found) == len(asked), server, f"{len(found)} queues, {len(asked)} were asked for")
    for one, other in zip(asked, found, strict=True):
        _check(
            (one.topic, one.queue) == (other.topic, other.queue),
            server,
            f"queue {other.queue} of {other.topic[:64]!r}, not {one.queue} of {one.topic!r}",
        )


def check_bounds(asked: Sequence[_Numbered], found: Sequence[pb.QueueOffsets], server: str) -> None:
    """Check the offsets of a reply, FOUND, against the queues ASKED for."""
    check_places(asked, found, server)
    for one in found:
        _check(
            0 <= one.min_offset <= one.max_offset and 0 <= one.offset_at_time <= one.max_offset,
            server,
            f"queue {one.queue} of {one.topic!r} from {one.min_offset} to {one.max_offset}, at {one.offset_at_time}",
        )


def check_leases(asked: Sequence[pb.QueueLease], reply: pb.LeaseReply, server: str) -> None:
    """Check REPLY against the leases ASKED for."""
    check_places(asked, reply.queues, server)
    _check(0 < reply.lease_ms <= LEASE_MOST_MS, server, f"leases of {reply.lease_ms} ms")
    for one in reply.queues:
        _check(one.token >= 0 and one.committed >= -1, server, f"lease {one.token}")


def check_assigned(assigned: pb.Assigned, server: str) -> None:
    """Check ASSIGNED, the queues of a member, as a coordinator sent them."""
    _check(0 <= assigned.generation <= GENERATION_MAX, server, f"generation {assigned.generation}")
    _check(
        len(assigned.queues) <= TOPIC_QUEUES_MAX,
        server,
        f"an assignment of {len(assigned.queues)} queues",
    )
    for one in assigned.queues:
        _check(
            0 <= one.queue < QUEUES_MAX,
            server,
            f"an assignment with queue {one.queue} of {one.topic[:64]!r}",
        )


def check_members(members: pb.Members, server: str) -> None:
    """Check MEMBERS, as a coordinator sent them."""
    _check(0 <= members.generation <= GENERATION_MAX, server, f"generation {members.generation}")


def check_commit(counts: Sequence[int], reply: pb.AtomicCommitReply, server: str) -> None:
    """Check REPLY to an atomic commit of batches of COUNTS messages."""
    found = [(len(one.queue_offsets), len(one.log_offsets)) for one in reply.places]
    _check(
        found == [(count, count) for count in counts],
        server,
        f"offsets of {found[:5]} messages for batches with {list(counts[:5])} messages",
    )


def check_advances(at: int, next_offset: int, server: str) -> None:
    """Check that NEXT_OFFSET, where the next page begins, is after AT, where this page began."""
    _check(next_offset > at, server, f"a page from {at} whose next one begins at {next_offset}")
