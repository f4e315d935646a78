"""Which messages a start loses: a store's evidence compared with the result, message by message.

A message is lost if consumers can no longer read it from its queue. Reasons:

    missing     its queue entry has no record: it is lost already, whichever broker starts
    damaged     its body does not match its CRC, and the broker removes it
    cut         it is valid, and after the place where the broker ends the log
    no entry    it is valid and stays in the log, but its queue has no entry for it
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .evidence import Messages, MessageState, StoreEvidence
from .start_outcome import StartOutcome

#: Queues that are named one by one; the rest is counted.
QUEUES_MAX: Final = 20
SAMPLES_MAX: Final = 3
#: Names in a list that is printed; the rest is counted.
NAMES_MAX: Final = 20
#: Messages whose keys are looked up: evenly spread over the log, all of them in a small store.
MESSAGES_MAX: Final = 4_000


class Reason(StrEnum):
    """Why a message is lost."""

    MISSING = "missing"
    DAMAGED = "damaged"
    CUT = "cut"
    NO_ENTRY = "no entry"


@dataclass(slots=True)
class StartLosses:
    """The losses of a start whose log ends at LOG_END. SERVED_DAMAGED: messages delivered with a wrong body."""

    evidence: StoreEvidence
    log_end: int
    by_reason: dict[Reason, Messages]
    served_damaged: Messages

    @property
    def messages(self) -> int:
        """Return how many messages are lost."""
        return sum(map(len, self.by_reason.values()))

    @property
    def size_bytes(self) -> int:
        """Return how many bytes the lost messages have in the log."""
        return sum(int(lost.size.sum()) for lost in self.by_reason.values())

    def to_json(self) -> dict[str, Any]:
        """Return the losses as plain values, with at most `QUEUES_MAX` queues and some samples a reason."""
        return {
            "messages": self.messages,
            "bytes": self.size_bytes,
            "reasons": [
                self._reason(reason, lost) for reason, lost in self.by_reason.items() if len(lost)
            ],
        }

    def _reason(self, reason: Reason, lost: Messages) -> dict[str, Any]:
        numbers, counts = np.unique(lost.queue, return_counts=True)
        order = np.argsort(-counts, kind="stable")[:QUEUES_MAX]
        return {
            "reason": str(reason),
            "why": self._why(reason, lost),
            "messages": len(lost),
            "bytes": int(lost.size.sum()),
            "queue_count": len(numbers),
            "queues": [self._queue(lost.take(lost.queue == numbers[row])) for row in order],
            "samples": self._samples(lost),
        }

    def _queue(self, lost: Messages) -> dict[str, Any]:
        topic, queue = self.evidence.names[int(lost.queue[0])]
        return {
            "topic": topic,
            "queue": queue,
            "messages": len(lost),
            "bytes": int(lost.size.sum()),
            "first_queue_offset": int(lost.queue_offset.min()),
            "last_queue_offset": int(lost.queue_offset.max()),
        }

    def _why(self, reason: Reason, lost: Messages) -> str:
        if reason is Reason.MISSING:
            return "; ".join(self._why_missing(lost))
        if reason is Reason.CUT:
            bad = self.evidence.why_bad(self.log_end)
            place = f"after {self.log_end:,}, where the broker ends the log"
            return f"{place} ({bad})" if bad else place
        return {
            Reason.DAMAGED: "a body that does not fit its CRC",
            Reason.NO_ENTRY: "in the log, but without an entry in the queue",
        }[reason]

    def _why_missing(self, lost: Messages) -> list[str]:
        """Return what is in the log where the messages should be."""
        offsets = lost.log_offset
        in_file = np.zeros(len(offsets), np.bool_)
        in_bad = np.zeros(len(offsets), np.bool_)
        for file in self.evidence.log_files:
            in_file |= (offsets >= file.start) & (offsets < file.end)
        for bad in self.evidence.bad:
            in_bad |= (offsets >= bad.start) & (offsets < bad.end)
        in_bad &= in_file
        found = {
            "the log file is missing": int((~in_file).sum()),
            "in its place are bytes that are no record": int(in_bad.sum()),
            "in its place are zeros": int((in_file & ~in_bad).sum()),
        }
        return [f"{why} ({count:,})" for why, count in found.items() if count]

    def _samples(self, lost: Messages) -> list[dict[str, Any]]:
        rows = range(len(lost)) if len(lost) <= SAMPLES_MAX else (0, len(lost) // 2, len(lost) - 1)
        return [self._sample(lost, row) for row in rows]

    def _sample(self, lost: Messages, row: int) -> dict[str, Any]:
        topic, queue = self.evidence.names[int(lost.queue[row])]
        at = int(lost.log_offset[row])
        sample: dict[str, Any] = {
            "topic": topic,
            "queue": queue,
            "queue_offset": int(lost.queue_offset[row]),
            "log_offset": at,
            "store_size": int(lost.size[row]),
            "stored_ms": None,
            "message_id": None,
            "keys": None,
            "tags": None,
        }
        record = None if lost.state[row] == MessageState.MISSING else self.evidence.record(at)
        if record is not None:
            sample |= {
                "stored_ms": record.store_timestamp_ms,
                "message_id": record.properties.get("UNIQ_KEY") or record.message_id,
                "keys": record.properties.get("KEYS"),
                "tags": record.properties.get("TAGS"),
            }
        return sample


def find_losses(evidence: StoreEvidence, outcome: StartOutcome) -> StartLosses:
    """Return the messages of EVIDENCE that are lost by OUTCOME."""
    messages = evidence.messages
    delivered = np.isin(messages.log_offset, outcome.delivered())
    in_log = (messages.log_offset >= outcome.log_begin) & (
        messages.log_offset + messages.size <= outcome.log_end
    )
    sound = messages.state == MessageState.SOUND
    damaged = messages.state == MessageState.DAMAGED
    taken_out = np.isin(messages.log_offset, outcome.voided())
    served = damaged & in_log & delivered & ~taken_out
    rows: dict[Reason, NDArray[np.bool_]] = {
        Reason.MISSING: messages.state == MessageState.MISSING,
        Reason.DAMAGED: damaged & ~served,
        Reason.CUT: sound & ~in_log,
        Reason.NO_ENTRY: sound & in_log & ~delivered,
    }
    by_reason = {reason: messages.take(chosen) for reason, chosen in rows.items()}
    return StartLosses(evidence, outcome.log_end, by_reason, messages.take(served))
