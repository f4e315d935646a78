"""Deduplication: process a message once, even if it is redelivered, by a key in the database of the application.

    once = Deduplicator("sqlite3")
    once.create_table(connection)

    with once(connection, "payment-17") as first:
        if first:
            connection.execute("UPDATE accounts …")
    connection.commit()
    once.done("payment-17")                             # optional: saves a query when it is redelivered

The key is inserted into a table of the application's database, where it is unique. The key and the work are committed
in one transaction. So after a crash, either both are stored and the redelivered message is a duplicate, or neither is.

    once = Deduplicator("sqlite3", connect=lambda: sqlite3.connect("accounts.db", check_same_thread=False))

    @once.guard(key=lambda message: message.key)
    def charge(message, connection):
        connection.execute("UPDATE accounts …")

    PushConsumer("billing", "payments", charge, delivery="effectively_once")

It works with DB-API 2.0 drivers of databases with savepoints: SQLite, PostgreSQL, MySQL. The driver module defines how
parameters are written (paramstyle) and the error for a key that exists (IntegrityError).
"""

from __future__ import annotations

import importlib
import logging
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from threading import Lock
from types import ModuleType
from typing import Any, Final, Protocol, TypeAlias

from ..proto.errors import ConfigError, InvalidArgument
from ..proto.facts import Facts
from .pushing.listening import Listener, failure_of, is_async
from .received_message import ReceivedMessage

logger = logging.getLogger(__name__)

KEY_CHARACTERS_MAX: Final = 255
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?")
_SAVEPOINT: Final = "pocketmq_once"
#: By paramstyle: how the first and the second parameter are written.
_PARAMETERS: Final[dict[str, tuple[str, str]]] = {
    "qmark": ("?", "?"),
    "numeric": (":1", ":2"),
    "named": (":scope", ":key"),
    "format": ("%s", "%s"),
    "pyformat": ("%(scope)s", "%(key)s"),
}
_BY_NAME: Final = ("named", "pyformat")

#: Returns the key of a message.
Key: TypeAlias = Callable[[ReceivedMessage], str | None]


def _message_id(message: ReceivedMessage) -> str:
    return message.message_id


class DatabaseConnection(Protocol):
    """The methods of a DB-API connection that are used."""

    def cursor(self) -> Any: ...
    def commit(self) -> object: ...
    def rollback(self) -> object: ...
    def close(self) -> object: ...


def remembers(listener: Listener) -> bool:
    """Return whether LISTENER was decorated with `Deduplicator.guard`."""
    return getattr(listener, "pocketmq_once", None) is not None


class DoneKeys:
    """The last SIZE keys that were processed or looked up. Any thread may use it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._lock = Lock()

    def add(self, key: str) -> None:
        """Remember KEY, and forget the key that was not looked up for the longest time."""
        with self._lock:
            self._keys[key] = None
            self._keys.move_to_end(key)
            while len(self._keys) > self._size:
                self._keys.popitem(last=False)

    def __contains__(self, key: str) -> bool:
        with self._lock:
            if key not in self._keys:
                return False
            self._keys.move_to_end(key)
            return True


def _checked_table(table: str) -> str:
    if not _NAME.fullmatch(table):
        raise ConfigError(
            f"table is {table!r}: use letters, digits and underscores, with or without a schema name",
            field="table",
            value=table,
        )
    return table


class Deduplicator:
    """Marks keys as processed in a table of a database.

    If two transactions mark the same key at once, the second one waits in the database until the first has committed;
    then it is a duplicate. Or the database refuses it (SQLite, after its busy timeout). Then its message fails and is
    redelivered.

    The last `cache_size` keys are also kept in memory, so that a duplicate needs no query. A key is added after its
    transaction was committed: by `guard`, or by `done`.

    Any thread may use a Deduplicator. A connection is used by one thread at a time.
    """

    def __init__(
        self,
        driver: ModuleType | str,
        *,
        connect: Callable[[], DatabaseConnection] | None = None,
        table: str = "pocketmq_once",
        scope: str = "",
        cache_size: int = 10_000,
        paramstyle: str | None = None,
    ) -> None:
        """Create a deduplicator.

        Args:
            driver: The DB-API module, or its name.
            connect: Opens a connection, for `guard`.
            table: Table of the keys.
            scope: Separates keys of one table, for example by group.
            cache_size: Number of keys that are kept in memory.
            paramstyle: How parameters are written; None: as the driver says.

        Raises:
            ConfigError: `driver` is not a DB-API module, or its paramstyle is unknown.
        """
        self._driver = importlib.import_module(driver) if isinstance(driver, str) else driver
        self._connect = connect
        self._table = _checked_table(table)
        self._scope = scope
        self._done = DoneKeys(cache_size)
        #: Idle connections of `guard`. There are as many as listeners were running at once.
        self._idle: list[DatabaseConnection] = []
        style = paramstyle or getattr(self._driver, "paramstyle", "")
        if style not in _PARAMETERS or not hasattr(self._driver, "IntegrityError"):
            raise ConfigError(
                f"{self._driver.__name__} is no DB-API driver with a paramstyle of {', '.join(_PARAMETERS)}"
                f" (it has {style!r}): pass the driver's module, or paramstyle=…",
                field="driver",
                value=self._driver.__name__,
            )
        self._by_name = style in _BY_NAME
        first, second = _PARAMETERS[style]
        self._insert = f"INSERT INTO {self._table} (scope, key_done) VALUES ({first}, {second})"

    def create_table(self, connection: DatabaseConnection) -> None:
        """Create the table if it does not exist, and commit."""
        width = KEY_CHARACTERS_MAX
        self._execute(
            connection,
            f"CREATE TABLE IF NOT EXISTS {self._table} (scope VARCHAR({width}) NOT NULL,"
            f" key_done VARCHAR({width}) NOT NULL, done_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,"
            " PRIMARY KEY (scope, key_done))",
        )
        connection.commit()

    @contextmanager
    def __call__(self, connection: DatabaseConnection, key: str) -> Iterator[bool]:
        """Mark KEY in the transaction of CONNECTION. The block gets True, or False if KEY was marked before.

        This commits nothing. Raises errors of the database, and InvalidArgument for a key that is too long.
        """
        yield self._is_first(connection, key)

    def done(self, key: str) -> None:
        """Note that the transaction in which KEY was marked is committed."""
        self._done.add(key)

    def guard(
        self, work: Callable[..., object] | None = None, *, key: Key = _message_id
    ) -> Callable[..., Any]:
        """Return a listener that calls WORK(message, connection) once per key, and commits: a decorator.

        If WORK raises, or returns a failure, the transaction is rolled back, and the message is redelivered.

        Args:
            work: The function to call.
            key: Returns the key of a message. The default is the message id. It does not detect an event that the
                application has sent twice.
        """
        if work is None:
            return partial(self.guard, key=key)
        if is_async(work):
            raise ConfigError(
                "guard does not support coroutine functions, because a DB-API connection blocks: use an ordinary"
                " function, which is called in a thread",
                field="listener",
            )
        if self._connect is None:
            raise ConfigError(
                "guard opens connections itself: pass connect=…, a function that returns a connection",
                field="connect",
            )

        @wraps(work)
        def listener(message: ReceivedMessage) -> object:
            name = key(message) or ""
            return None if name in self._done else self._do(work, message, name)

        listener.pocketmq_once = self  # type: ignore[attr-defined]
        return listener

    def _do(self, work: Callable[..., object], message: ReceivedMessage, key: str) -> object:
        """Call WORK with MESSAGE in a new transaction, unless KEY is marked; return the result of WORK."""
        assert self._connect is not None
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            result = work(message, connection) if self._is_first(connection, key) else None
            if failure_of(result) is None:
                connection.commit()
                self._done.add(key)
            else:
                connection.rollback()
        except BaseException:
            # Roll back after any error. The connection may be broken, so do not use it again.
            self._discard(connection)
            raise
        self._idle.append(connection)
        return result

    def _discard(self, connection: DatabaseConnection) -> None:
        try:
            connection.rollback()
        except self._driver.Error as error:
            facts = Facts(driver=self._driver.__name__, reason=repr(error))
            logger.debug("rollback failed, connection broken %s", facts)
        finally:
            connection.close()

    def close(self) -> None:
        """Close the connections that `guard` opened. Close the consumer first."""
        while self._idle:
            self._idle.pop().close()

    def _is_first(self, connection: DatabaseConnection, key: str) -> bool:
        if not 0 < len(key) <= KEY_CHARACTERS_MAX:
            raise InvalidArgument(
                f"the key has {len(key)} characters: it must have 1 to {KEY_CHARACTERS_MAX}. Use a digest of the key.",
                field="key",
                limit=KEY_CHARACTERS_MAX,
                value=len(key),
            )
        return key not in self._done and self._mark(connection, key)

    def _mark(self, connection: DatabaseConnection, key: str) -> bool:
        """Insert KEY; return False if it exists. The application's work in the transaction is not affected."""
        values: Any = {"scope": self._scope, "key": key} if self._by_name else (self._scope, key)
        # In some databases (PostgreSQL) an error ends the transaction, unless there is a savepoint.
        self._begin(connection)
        self._execute(connection, f"SAVEPOINT {_SAVEPOINT}")
        try:
            self._execute(connection, self._insert, values)
        except self._driver.IntegrityError:
            self._execute(connection, f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            return False
        self._execute(connection, f"RELEASE SAVEPOINT {_SAVEPOINT}")
        return True

    def _begin(self, connection: Any) -> None:
        """Open a transaction in SQLite. Its driver opens none for a savepoint, so the release would commit."""
        if "sqlite" in self._driver.__name__ and not connection.in_transaction:
            self._execute(connection, "BEGIN IMMEDIATE")

    def _execute(self, connection: DatabaseConnection, statement: str, values: Any = None) -> None:
        cursor = connection.cursor()
        try:
            if values is None:
                cursor.execute(statement)
            else:
                cursor.execute(statement, values)
        finally:
            cursor.close()
