"""What a log line is about, as text: `queue lost queue=orders[broker-a:3] reason="not renewed in time"`.

    logger.warning("queue lost %s", Facts(queue=queue, reason=why))

The message stays a constant, the facts stand behind it in the line, however logging is set up, and `record.args` has
them as a mapping.
"""

from __future__ import annotations

import json


class Facts(dict[str, object]):
    """Facts by name, in the order given, as `name=value`; one that is None is left out."""

    def __init__(self, **facts: object) -> None:
        super().__init__({name: value for name, value in facts.items() if value is not None})

    def __str__(self) -> str:
        return " ".join(f"{name}={shown(value)}" for name, value in self.items())


def shown(value: object) -> str:
    """Return VALUE as text; as JSON where it would not be told from what stands around it."""
    text = str(value)
    plain = text.isprintable() and text and not set(text) & set(' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)
