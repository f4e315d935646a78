"""Are the keys of the messages found after a start? A sample is looked up in both brokers' indexes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from .evidence import Evidence, State
from .outcome import Outcome

Key = tuple[str, str, str]

#: Messages whose keys are looked up: evenly spread over the log, all of them in a small store.
MESSAGES_MAX: Final = 4_000


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
            "isSample": self.is_sample,
            "lost": [{"topic": topic, "key": key} for topic, key, kind in self.lost if not kind],
        }


def check_keys(evidence: Evidence, outcome: Outcome) -> KeysFound:
    """Look up the keys and tags of messages that OUTCOME keeps in the log."""
    messages = evidence.messages
    kept = (
        (messages.state == State.SOUND)
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


def _keys_at(evidence: Evidence, log_offset: int) -> list[Key]:
    record = evidence.record(log_offset)
    if record is None:
        return []
    words = [word for word in record.properties.get("KEYS", "").split(" ") if word]
    unique = record.properties.get("UNIQ_KEY")
    keys = [(record.topic, word, "") for word in ([unique] if unique else []) + words]
    tags = record.properties.get("TAGS")
    return [*keys, (record.topic, tags, "T")] if tags else keys
