"""What a look at a cluster leaves out because the user may not see it."""

from __future__ import annotations

from ..client import Admin
from .output import warn


def warn_of_hidden(admin: Admin) -> None:
    """Say on standard error how many topics and groups the user of ADMIN may not see, if there are any."""
    counts = zip(("topic", "group"), admin.hidden_names(), strict=True)
    parts = [f"{count:,} {what}{'s' if count > 1 else ''}" for what, count in counts if count]
    if parts:
        warn([f"left out {' and '.join(parts)} that this user may not see: a policy denies it"])
