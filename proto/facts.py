"""Facts in log lines, as `name=value`: `queue lost queue=orders[broker-a:3] reason="not renewed in time"`.

    logger.warning("queue lost %s", Facts(queue=queue, reason=why))

The message stays a constant, and the facts follow it in the line with every logging configuration. `record.args` has
them as a mapping.
"""

from __future__ import annotations

import json


class Facts(dict[str, object]):
    """Facts by name, shown as `name=value` in the order given. Facts that are None are left out."""

    def __init__(self, **facts: object) -> None:
        super().__init__({name: value for name, value in facts.items() if value is not None})

    def __str__(self) -> str:
        return " ".join(f"{name}={shown(value)}" for name, value in self.items())


def shown(value: object) -> str:
    """Return VALUE as text; as JSON where its text would be ambiguous in a line of facts."""
    text = str(value)
    plain = text.isprintable() and text and not set(text) & set(' "=')
    return text if plain else json.dumps(text, ensure_ascii=False)
