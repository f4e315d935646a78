"""Whether keys are still found after a start: a sample of messages is looked up in the broker's index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .changes import Key
from .evidence import MessageState, StoreEvidence
from .losses import MESSAGES_MAX
from .start_outcome import StartOutcome


@dataclass(frozen=True, slots=True)
class KeysFound:
    """Of CHECKED keys and tags FOUND were found; IS_SAMPLE: there are more in the store."""

    checked: int
    found: int
    is_sample: bool
    lost: tuple[Key, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, and some keys that were not found."""
        return {
            "checked": self.checked,
            "found": self.found,
            "is_sample": self.is_sample,
            "lost": [{"topic": topic, "key": key} for topic, key, kind in self.lost if not kind],
        }


def check_keys(evidence: StoreEvidence, outcome: StartOutcome) -> KeysFound:
    """Look up the keys and tags of messages that stay in the log by OUTCOME."""
    messages = evidence.messages
    kept = (
        (messages.state == MessageState.SOUND)
        & (messages.log_offset >= outcome.log_begin)
        & (messages.log_offset < outcome.log_end)
    )
    offsets = messages.log_offset[kept]
    is_sample = len(offsets) > MESSAGES_MAX
    if is_sample:
        offsets = offsets[np.linspace(0, len(offsets) - 1, MESSAGES_MAX).astype(np.int64)]
    keys: dict[Key, None] = {}
    for offset in offsets.tolist():
        keys |= dict.fromkeys(_keys_at(evidence, offset))
    lost = [key for key in keys if not outcome.lookup(*key)]
    return KeysFound(len(keys), len(keys) - len(lost), is_sample, tuple(lost[:3]))


def _keys_at(evidence: StoreEvidence, log_offset: int) -> list[Key]:
    record = evidence.record(log_offset)
    if record is None:
        return []
    words = [word for word in record.properties.get("KEYS", "").split(" ") if word]
    unique = record.properties.get("UNIQ_KEY")
    keys = [(record.topic, word, "") for word in ([unique] if unique else []) + words]
    tags = record.properties.get("TAGS")
    return [*keys, (record.topic, tags, "T")] if tags else keys
