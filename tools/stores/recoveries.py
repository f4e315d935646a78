"""Whose recovery decides what a store holds: Apache RocketMQ 5.5.0's ("apache"), or ours ("ours")."""

from __future__ import annotations

from typing import Final, Literal

RecoveryName = Literal["apache", "ours"]
RECOVERIES: Final[tuple[RecoveryName, ...]] = ("apache", "ours")
