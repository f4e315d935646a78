"""Recovery: from whatever files a stop or a crash left behind to a store that can be served."""

from .recover import recover
from .report import Finding, Kind, RecoveryPolicy, RecoveryReport
from .verified import Snapshot, Verified

__all__ = [
    "Finding",
    "Kind",
    "RecoveryPolicy",
    "RecoveryReport",
    "Snapshot",
    "Verified",
    "recover",
]
