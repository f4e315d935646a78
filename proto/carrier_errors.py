"""What callers hear of a carrier itself, whichever it is: bugs, stops, and answers that they do not read."""

from __future__ import annotations

import logging

from .errors import Overloaded, PocketMQError, ShuttingDown

logger = logging.getLogger(__name__)


def internal_error(path: str, bug: BaseException) -> PocketMQError:
    """Log BUG, which the handler of PATH let out, and return what the caller hears: nothing of the inside."""
    logger.error("handler failed method=%s", path, exc_info=bug)
    return PocketMQError(f"internal error in {path}", method=path)


def shutting_down() -> ShuttingDown:
    """Return how calls end that a stop ends."""
    return ShuttingDown("the server is about to stop; ask again later or elsewhere")


def not_read(queued: int, limit: int, field: str) -> Overloaded:
    """Return how calls end whose peer does not read what is QUEUED for it, more bytes than LIMIT, the setting FIELD."""
    return Overloaded(
        f"{queued} bytes wait for a peer that does not read them, the limit is {limit}:"
        " read faster or ask for less",
        field=field,
        limit=limit,
        value=queued,
    )
