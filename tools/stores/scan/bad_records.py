"""Handling of damaged bytes in a scan."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final, Literal, get_args

from ....proto.errors import ConfigError, CorruptRecord
from ....store.log_range import LogDamage
from ...counted import counted

logger = logging.getLogger(__name__)

#: "fail": the first one is an error.  "skip": they are left out and counted.  "rows": they are rows of their own.
Policy = Literal["fail", "skip", "rows"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)


def policy_of(text: str) -> Policy:
    """Return the policy TEXT; ConfigError for no such."""
    for policy in POLICIES:
        if text == policy:
            return policy
    raise ConfigError(
        f"badRecords={text!r}: use fail, skip or rows", field="badRecords", value=text
    )


@dataclass(slots=True)
class BadRecords:
    """Counts what was skipped: how many stretches of bytes, and how many bytes together."""

    policy: Policy
    count: int = 0
    bytes: int = 0

    def meet(self, damage: LogDamage) -> None:
        """Count DAMAGE, or raise CorruptRecord."""
        if self.policy == "fail":
            raise CorruptRecord(
                f"{damage.path}: {damage.size:,} bytes at {damage.start:,} are not a valid record ({damage.why}); "
                "badRecords=skip continues after them",
                field="badRecords",
                path=damage.path,
                offset=damage.start,
                size=damage.size,
            )
        self.count += 1
        self.bytes += damage.size
        logger.debug(
            "bytes are not a valid record",
            extra={"path": damage.path, "offset": damage.start, "size": damage.size},
        )

    def sentence(self) -> str:
        """Return what was left out, for people; empty if nothing was."""
        if not self.count:
            return ""
        return f"{counted(self.count, 'bad record')} left out, {self.bytes:,} bytes"
