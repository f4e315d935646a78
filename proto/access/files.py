"""The file of users: read by servers, changed by commands, and read again when it has changed.

It holds secrets, so only its owner may read it (mode 0600, or less); another mode is refused. Keep it next to the
configuration, not in a store, so that copies and exports of a store do not contain it. A change writes a new file and
renames it over the old one, without its comments. Concurrent changes wait for each other.

Servers check once per second whether the file has changed. On SIGHUP they also read the files of single secrets again.
If the new content is wrong, they log the fault and keep the previous users.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from ..yaml_file import read_yaml
from .audit import AUDIT, Audit
from .guard import Guard
from .secret_files import own_path, read_private, read_secret
from .signing import own_credentials, signed_now
from .users import UserEntry, Users, read_users

if TYPE_CHECKING:  # channels.py imports the credentials of this package.
    from ..rpc.channels import Dial
    from ..tls import Trust

logger = logging.getLogger(__name__)

FILE_BYTES_MAX: Final = 64 * 1024 * 1024
#: How often servers look whether the file has changed.
LOOK_MS: Final = 1_000
#: Changed users that are logged one by one after one reload.
_LOGGED_MAX: Final = 100


class UserFile:
    """The file of users at PATH."""

    def __init__(self, path: str | Path) -> None:
        self.path = own_path(path)

    def read(self) -> dict[str, UserEntry]:
        """Return the users in it, by name. Raises ConfigError."""
        text = read_private(self.path, FILE_BYTES_MAX)
        return read_users(read_yaml(text, str(self.path)), str(self.path))

    def mark(self) -> tuple[int, int, int] | None:
        """Return a value that differs when the file has changed; None: the file does not exist."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    @contextlib.contextmanager
    def change(self, *, make: bool = False) -> Iterator[MutableMapping[str, UserEntry]]:
        """Yield the users by name, and write them when the block ends without an error. MAKE: create a missing file."""
        if make and not self.path.exists():
            self._write({})
        with self._alone():
            entries = self.read()
            before = dict(entries)
            yield entries
            if entries != before:
                self._write(entries)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock out other commands that change the file."""
        import fcntl  # Not on Windows, where servers do not run.

        while True:
            try:
                file = self.path.open("rb")
            except OSError as error:
                raise ConfigError(
                    f"{self.path}: cannot be read: {error.strerror}", file=self.path
                ) from None
            with file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if os.fstat(file.fileno()).st_ino == self.path.stat().st_ino:
                    yield
                    return

    def _write(self, entries: Mapping[str, UserEntry]) -> None:
        import yaml

        document = {"users": {name: entry.to_document() for name, entry in entries.items()}}
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
            try:
                with open(descriptor, "w", encoding="utf-8") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(name, self.path)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as error:
            raise ConfigError(
                f"{self.path}: cannot be written: {error.strerror}", file=self.path
            ) from None


class WatchedUsers:
    """The guard of a server, with the users of the file at PATH, which it watches. Raises ConfigError."""

    def __init__(
        self,
        path: str,
        now_ms: Callable[[], int],
        *,
        plaintext: bool,
        cluster: str = "*",
        write: Callable[[str], None] = AUDIT.warning,
    ) -> None:
        """NOW_MS is Unix time; PLAINTEXT and CLUSTER are those of `Guard`; WRITE takes lines for the audit log."""
        self._file = UserFile(path)
        self._audit = Audit(now_ms, write)
        self._mark = self._file.mark()
        self._entries, users = self._loaded()
        self._asked = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self.guard = Guard(users, self._audit, plaintext=plaintext, cluster=cluster)

    def start(self) -> None:
        """Watch the file from now on; the event loop must be running."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        """Stop watching."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
            self._watching = None

    def reload(self) -> None:
        """Read the file and the files of secrets again, whether they have changed or not."""
        self._asked.set()

    async def _watch(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_MS / 1000):
                    await self._asked.wait()
            mark = self._file.mark()
            if self._asked.is_set() or mark != self._mark:
                self._asked.clear()
                self._mark = mark
                try:
                    await self._read_again()
                except ConfigError as error:
                    self._not_reloaded(error.message)
                except Exception as bug:  # Last resort. The text of the error may contain a secret.
                    self._not_reloaded(f"internal error: {type(bug).__name__}")
                    logger.error("%s", "".join(traceback.format_tb(bug.__traceback__)))

    def _not_reloaded(self, reason: str) -> None:
        logger.error("users not reloaded reason=%s", reason)
        self._audit.changed("users not reloaded", reason=reason)

    async def _read_again(self) -> None:
        """Use the current content of the file; if it is invalid, change nothing. Raises ConfigError."""
        entries, users = await asyncio.to_thread(self._loaded)
        before, self._entries = self._entries, entries
        self.guard.replace(users)
        changes = list(_changes(before, entries))
        for what, user in changes[:_LOGGED_MAX]:
            self._audit.changed(what, user=user)
        self._audit.changed("users reloaded", users=len(entries), changes=len(changes))

    def _loaded(self) -> tuple[dict[str, UserEntry], Users]:
        entries = self._file.read()
        return entries, Users(entries.values(), read_secret)

    def own_credentials(self) -> tuple[str, str] | None:
        """Return the first Super user, who signs calls of this server to others; None: there is none."""
        user = self.guard.users.first_super
        return None if user is None else (user.name, user.secret.decode())

    def signature(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata that signs a call that this server makes now; empty without credentials."""
        own = self.own_credentials()
        return () if own is None else signed_now(*own)


def _changes(
    before: Mapping[str, UserEntry], after: Mapping[str, UserEntry]
) -> Iterator[tuple[str, str]]:
    """Yield the changes as (event, user)."""
    for name, entry in after.items():
        old = before.get(name)
        if old is None:
            yield "user created", name
        elif old != entry:
            same = _without_policies(old) == _without_policies(entry)
            yield ("acl changed" if same else "user changed"), name
    for name in before.keys() - after.keys():
        yield "user deleted", name


def _without_policies(entry: UserEntry) -> tuple[Any, ...]:
    return entry.secret, entry.is_super, entry.enabled, entry.certificates


def signing(peers: Trust, users: WatchedUsers | None) -> Dial:
    """Return a factory of channels to PEERS, for a server with USERS; raise ConfigError.

    Calls are signed by the user of the environment, or else by the first Super user of USERS at the time of the call.
    """
    signed = own_credentials(os.environ)
    if signed is not None:
        return replace(peers, user=signed[0], secret=signed[1]).dial()
    return peers.dial(users.signature if users else None)


def watched_users(
    path: str, now_ms: Callable[[], int], *, plaintext: bool, cluster: str = "*"
) -> WatchedUsers | None:
    """Return the guard of a server with the file of users at PATH; None for no path: callers may do everything."""
    return WatchedUsers(path, now_ms, plaintext=plaintext, cluster=cluster) if path else None
