"""Reading one range of a queue, as raw records: while one fetch is decoded, the next one is in flight.

Without a filter every offset of a range is a message; one that is not there was damaged in the broker's store, or is
gone by retention: that is a loss. A fetch that brings nothing and does not advance is an error, so that a task never
reads for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from ....client.queue import Queue
from ....client.received_message import FetchedRun
from ....proto.errors import CorruptRecord, OffsetOutOfRange
from ....proto.gen import pocketmq_v1_pb2 as pb
from ...counted import counted
from .losses import Losses
from .ranges import QueueRange


class Fetcher(Protocol):
    """Fetches records; `LiveCluster` does."""

    def fetch(
        self, queue: Queue, offset: int, count: int, wanted: pb.Filter | None
    ) -> Future[pb.FetchReply]:
        """Ask for up to COUNT messages of QUEUE from OFFSET on, and return what will hold the answer."""
        ...


class Fetched(NamedTuple):
    """RUN's messages with index BEGIN up to, and without, END."""

    run: FetchedRun
    begin: int
    end: int


def fetched(
    fetcher: Fetcher, wanted_range: QueueRange, wanted: pb.Filter | None, losses: Losses
) -> Iterator[Fetched]:
    """Yield the messages of WANTED_RANGE that the filter WANTED lets through (None: all), in order, each once."""
    queue, at, end = wanted_range.queue, wanted_range.begin, wanted_range.end
    pending = fetcher.fetch(queue, at, end - at, wanted) if at < end else None
    while pending is not None:
        try:
            reply = pending.result()
        except OffsetOutOfRange as error:
            at = _behind_loss(error, queue, at, end, losses)
            pending = fetcher.fetch(queue, at, end - at, wanted) if at < end else None
            continue
        behind = min(reply.next_offset, end)
        if behind <= at:
            raise CorruptRecord(
                f"{queue}: the broker brings nothing from offset {at} on, but {counted(end - at, 'message')} must"
                " follow",
                field="next_offset",
                value=reply.next_offset,
            )
        pending = fetcher.fetch(queue, behind, end - behind, wanted) if behind < end else None
        part = _part(FetchedRun(queue.broker, reply.records), at, end)
        if wanted is None and part.end - part.begin < behind - at:
            missing = behind - at - (part.end - part.begin)
            losses.report(
                f"{queue}: {counted(missing, 'message')} between offsets {at} and {behind} not in the log"
            )
        if part.begin < part.end:
            yield part
        at = behind


def _part(run: FetchedRun, begin: int, end: int) -> Fetched:
    """Return the messages of RUN from offset BEGIN up to END."""
    offsets = run.columns.queue_offset
    return Fetched(run, int(offsets.searchsorted(begin)), int(offsets.searchsorted(end)))


def _behind_loss(error: OffsetOutOfRange, queue: Queue, at: int, end: int, losses: Losses) -> int:
    """Return where to continue after ERROR; report the loss."""
    least = int(error.details.get("min_offset", end))
    losses.report(f"{queue}: {error.message}")
    return min(max(least, at + 1), end)
