"""The topics and groups that a look at a cluster leaves out because the user may not see them."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..client import Admin
from .counted import counted
from .output import warn


@dataclass(slots=True)
class HiddenNames:
    """Names that the user may list, but not look at. The look adds them."""

    topics: set[str] = field(default_factory=set)
    groups: set[str] = field(default_factory=set)
    is_warned: bool = False

    def warn_once(self, admin: Admin) -> None:
        """Print the warning for these names, and for those that the user of ADMIN may not even list; the first time."""
        if self.is_warned:
            return
        self.is_warned = True
        warn_of_hidden(
            topics=admin.hidden_topics() + len(self.topics),
            groups=admin.hidden_groups() + len(self.groups),
        )


def warn_of_hidden(*, topics: int = 0, groups: int = 0) -> None:
    """Print on standard error how many TOPICS and GROUPS are left out, if there are any."""
    counts = (("topic", topics), ("group", groups))
    parts = [counted(count, what) for what, count in counts if count]
    if parts:
        warn([f"left out {' and '.join(parts)} that this user may not see: a policy denies it"])
