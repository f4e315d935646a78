"""What happens for messages that are gone before they were read: an error, or a warning."""

from __future__ import annotations

import logging

from ....proto.errors import OffsetOutOfRange

logger = logging.getLogger(__name__)


class Losses:
    """Reports losses: raises if IS_FATAL (option failOnDataLoss), else warns."""

    def __init__(self, is_fatal: bool) -> None:
        self._is_fatal = is_fatal

    def report(self, what: str) -> None:
        """Raise OffsetOutOfRange, or warn: WHAT says which messages were to be read, and why they are not there."""
        if self._is_fatal:
            raise OffsetOutOfRange(
                f"{what}: messages that were to be read are lost; failOnDataLoss=false reads on without them",
                field="failOnDataLoss",
            )
        logger.warning("messages that were to be read are lost what=%s", what)
