"""Recovery: from whatever files a stop or a crash left behind to a store that can be served."""

from .recover import LogCut, recover
from .report import FindingKind, RecoveryFinding, RecoveryPolicy, RecoveryReport
from .verified import Verified, VerifiedSnapshot

__all__ = [
    "RecoveryFinding",
    "FindingKind",
    "LogCut",
    "RecoveryPolicy",
    "RecoveryReport",
    "VerifiedSnapshot",
    "Verified",
    "recover",
]
