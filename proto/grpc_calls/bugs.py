"""What a caller hears of a handler's bug: nothing of the inside, which is logged."""

from __future__ import annotations

import logging

from ..errors import PocketMQError

logger = logging.getLogger(__name__)


def internal_error(path: str, bug: BaseException) -> PocketMQError:
    """Log BUG, which the handler of PATH let out, and return what the caller hears of it."""
    logger.error("handler failed method=%s", path, exc_info=bug)
    return PocketMQError(f"internal error in {path}", method=path)
