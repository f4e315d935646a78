"""The audit log: one line for each refused or administrative call, with a limit of lines per minute."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from ..errors import PocketMQError
from .signing import NO_USER

AUDIT: Final = logging.getLogger("pocketmq.audit")
LINES_MAX: Final = 600
#: The share of LINES_MAX for one host.
HOST_LINES_MAX: Final = 100
_MINUTE_MS: Final = 60_000
#: Official Go clients send these without a signature, and repeat them whatever the answer is.
_UNSIGNED: Final = "/opencensus.proto."
#: Interval between log lines about such calls, and the number of hosts in one.
UNSIGNED_MS: Final = 3_600_000
_UNSIGNED_HOSTS_MAX: Final = 100
#: Longer texts are cut off: names in requests may be long.
_SHOWN: Final = 500


class Audit:
    """Logs denials and changes of users as lines of JSON. NOW_MS is Unix time; WRITE takes a line.

    The same denial is logged once per minute, with a count afterwards. Limits: LINES_MAX denials per minute, and
    HOST_LINES_MAX of one host. Unsigned OpenCensus calls of official Go clients are only counted, in one line per
    UNSIGNED_MS.
    """

    def __init__(
        self, now_ms: Callable[[], int], write: Callable[[str], None] = AUDIT.warning
    ) -> None:
        self._now_ms = now_ms
        self._write = write
        #: All denials, logged or not, by the name of their error.
        self.denials: Counter[str] = Counter()
        self._minute = -1
        self._counts: dict[tuple[str, ...], int] = {}
        self._by_host: dict[str, int] = {}
        self._lines = self._dropped = 0
        #: Unsigned calls not logged yet, some of their hosts, and when to log them.
        self._unsigned = 0
        self._unsigned_hosts: set[str] = set()
        self._unsigned_due_ms = 0

    def denied(self, method: str, peer: str, error: PocketMQError) -> None:
        """Note that ERROR refuses a call of METHOD from PEER.

        The policy that decided is removed from ERROR and only logged: it may name things that the caller may not see.
        """
        self._turn()
        self.denials[type(error).__name__] += 1
        policy = error.details.pop("policy", "")
        details = error.details | {"policy": policy}
        host, user = host_of(peer), details.get("user", "")
        if method.startswith(_UNSIGNED) and error.message == NO_USER:
            self._count_unsigned(host)
            return
        key = (method, host, user[:_SHOWN], error.message[:_SHOWN])
        count = self._counts.get(key)
        if count is not None:
            self._counts[key] = count + 1
            return
        of_host = self._by_host.get(host, 0)
        if self._lines >= LINES_MAX or of_host >= HOST_LINES_MAX:
            self._dropped += 1
            return
        self._lines += 1
        self._by_host[host] = of_host + 1
        self._counts[key] = 1
        shown = {
            name: details[name] for name in ("resource", "actions", "policy") if details.get(name)
        }
        self._log("denied", user=user, method=method, host=host, reason=error.message, **shown)

    def _count_unsigned(self, host: str) -> None:
        self._unsigned += 1
        if len(self._unsigned_hosts) < _UNSIGNED_HOSTS_MAX:
            self._unsigned_hosts.add(host)
        self._log_unsigned()

    def _log_unsigned(self) -> None:
        """Log unsigned calls if there were any and UNSIGNED_MS have passed."""
        if self._unsigned and self._now_ms() >= self._unsigned_due_ms:
            hosts = ", ".join(sorted(self._unsigned_hosts))
            self._log(
                "denied, unsigned measurements", count=self._unsigned, hosts=hosts, reason=NO_USER
            )
            self._unsigned, self._unsigned_hosts = 0, set()
            self._unsigned_due_ms = self._now_ms() + UNSIGNED_MS

    def changed(self, what: str, **details: Any) -> None:
        """Note a change by an administrator: WHAT, and DETAILS without secrets."""
        self._turn()
        self._log(what, **details)

    def _turn(self) -> None:
        """Start another minute if it is over, and log the repeated and dropped denials of the last one."""
        minute = self._now_ms() // _MINUTE_MS
        if minute == self._minute:
            return
        self._log_unsigned()
        counts, dropped = self._counts, self._dropped
        self._minute, self._counts, self._by_host = minute, {}, {}
        self._lines = self._dropped = 0
        for (method, host, user, reason), count in counts.items():
            if count > 1:
                again = {"user": user, "method": method, "host": host, "reason": reason}
                self._log("denied again", **again, count=count - 1)
        if dropped:
            self._log("denied, not logged one by one", count=dropped)

    def _log(self, what: str, **details: Any) -> None:
        cut = {
            name: value[:_SHOWN] if isinstance(value, str) else value
            for name, value in details.items()
        }
        self._write(json.dumps({"at_ms": self._now_ms(), "event": what, **cut}, ensure_ascii=True))


def host_of(peer: str) -> str:
    """Return the address in PEER, "127.0.0.1:40312" or "[::1]:40312"."""
    host = peer.rpartition(":")[0]
    return host[1:-1] if host.startswith("[") else host
