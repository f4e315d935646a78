"""What a broker knows of numbered runs, as plainly as can be: every number of the epoch, and where it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from pocketmq.proto.errors import OutOfOrderSequence, ProducerFenced, UnknownProducer
from pocketmq.proto.gen import pocketmq_v1_pb2 as pb


@dataclass
class _Sequence:
    epoch: int = 0
    #: The queue offset of each number.
    offsets: list[int] = field(default_factory=list)
    log_offsets: list[int] = field(default_factory=list)


class SequenceTable:
    """Numbers by producer, topic and queue."""

    def __init__(self) -> None:
        self._sequences: dict[tuple[int, str, int], _Sequence] = {}

    def repeated(self, run: pb.ProduceRun) -> pb.ProduceReply | None:
        """Return the answer to RUN if it was stored before, None if it is to be stored; raise what it is refused with.

        Of a run of which only the first records were stored, `first_part` makes two.
        """
        if not run.producer_id:
            return None
        count, first = len(run.sizes), run.first_sequence
        known = self._sequences.get(_key(run))
        if known is None and first:
            raise UnknownProducer(f"nothing is known of producer {run.producer_id:x}")
        if known is None or run.producer_epoch > known.epoch:
            if first:
                raise OutOfOrderSequence(f"epoch {run.producer_epoch} begins with {first}")
            self._sequences[_key(run)] = _Sequence(run.producer_epoch)
            return None
        if run.producer_epoch < known.epoch:
            raise ProducerFenced(f"epoch {run.producer_epoch} is over, it is {known.epoch}")
        expected = len(known.offsets)
        if first > expected:
            raise OutOfOrderSequence(f"expected {expected}, not {first}")
        if first == expected:
            return None
        assert first + count <= expected, "a run repeats as a whole"
        rows = slice(first, first + count)
        return pb.ProduceReply(
            run_id=run.run_id,
            first_queue_offset=known.offsets[first],
            first_log_offset=known.log_offsets[first],
            queue_offsets=known.offsets[rows],
            log_offsets=known.log_offsets[rows],
            durability=run.durability,
            store_host="127.0.0.1:8081",
            repeated_count=count,
        )

    def first_part(self, run: pb.ProduceRun) -> int:
        """Return how many of the first records of RUN were stored, if others of it were not; else 0."""
        known = self._sequences.get(_key(run))
        if known is None or not run.producer_id or run.producer_epoch != known.epoch:
            return 0
        stored = len(known.offsets) - run.first_sequence
        return stored if 0 < stored < len(run.sizes) else 0

    def knows(self, run: pb.ProduceRun) -> bool:
        """Tell whether the first record of RUN was stored before."""
        known = self._sequences.get(_key(run))
        if known is None or not run.producer_id:
            return False
        return run.producer_epoch == known.epoch and run.first_sequence < len(known.offsets)

    def stored(self, run: pb.ProduceRun, reply: pb.ProduceReply) -> None:
        """Note that RUN was stored as REPLY says."""
        if run.producer_id:
            known = self._sequences[_key(run)]
            count = len(run.sizes)
            first, log = reply.first_queue_offset, reply.first_log_offset
            known.offsets += reply.queue_offsets or range(first, first + count)
            ends = [log + sum(run.sizes[:at]) for at in range(count)]
            known.log_offsets += reply.log_offsets or ends

    def forget(self) -> None:
        """Lose everything, as a broker does whose state was deleted."""
        self._sequences.clear()


def _key(run: pb.ProduceRun) -> tuple[int, str, int]:
    return run.producer_id, run.topic, run.queue
