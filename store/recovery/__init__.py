"""Recovery: from whatever files a stop or a crash left behind to a store that can be served."""

from .report import Finding, Kind, RecoveryPolicy, RecoveryReport

__all__ = ["Finding", "Kind", "RecoveryPolicy", "RecoveryReport"]
