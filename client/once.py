"""Work that is done once, also if its message is redelivered: a business key is marked in the application's database.

    once = Deduplicator("sqlite3")
    once.create_table(connection)

    with once(connection, "payment-17") as first:
        if first:
            connection.execute("UPDATE accounts …")
    connection.commit()
    once.done("payment-17")                             # optional: saves a query when it is redelivered

The key is inserted into a table of the application's database, where it is unique. Mark and work are committed together
or not at all, so that a message that is redelivered after a crash finds both or neither.

    once = Deduplicator("sqlite3", connect=lambda: sqlite3.connect("accounts.db", check_same_thread=False))

    @once.guard(key=lambda message: message.key)
    def charge(message, connection):
        connection.execute("UPDATE accounts …")

    PushConsumer("billing", "payments", charge, delivery="effectively_once")

For DB-API 2.0 drivers of databases with savepoints: SQLite, PostgreSQL, MySQL. The driver's module, or its name,
defines how parameters are written (paramstyle) and the error for a key that exists (IntegrityError).
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
#: How a parameter is written, by paramstyle: the text of both, and how they are passed.
_PARAMETERS: Final[dict[str, tuple[str, str]]] = {
    "qmark": ("?", "?"),
    "numeric": (":1", ":2"),
    "named": (":scope", ":key"),
    "format": ("%s", "%s"),
    "pyformat": ("%(scope)s", "%(key)s"),
}
_BY_NAME: Final = ("named", "pyformat")

#: Names what a message is about.
Key: TypeAlias = Callable[[ReceivedMessage], str | None]


def _message_id(message: ReceivedMessage) -> str:
    return message.message_id


class DatabaseConnection(Protocol):
    """What is used of a DB-API connection."""

    def cursor(self) -> Any: ...
    def commit(self) -> object: ...
    def rollback(self) -> object: ...
    def close(self) -> object: ...


def remembers(listener: Listener) -> bool:
    """Was LISTENER decorated with `Deduplicator.guard`?"""
    return getattr(listener, "pocketmq_once", None) is not None


class DoneKeys:
    """The keys that were done last, at most SIZE. Any thread may use it."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._lock = Lock()

    def add(self, key: str) -> None:
        """Remember KEY; the one that was not asked for the longest is forgotten."""
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
            f"table is {table!r}, but must be a name of letters, digits and underscores, with a schema or without",
            field="table",
            value=table,
        )
    return table


class Deduplicator:
    """Marks keys as done in TABLE of a database, through DRIVER.

    If two transactions mark the same key at once, the second waits in the database until the first has committed, and
    is a duplicate; or the database refuses it (SQLite, after its busy timeout), its message fails, and is redelivered.

    Keys that are known to be done are kept in memory, `cache_size` of them, so that a duplicate costs no query. A key
    gets there only when its transaction was committed: by `guard`, which commits itself, or by `done`.

    Any thread may use a Deduplicator; a connection is with one thread at a time.
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
        """CONNECT opens a connection for `guard`. SCOPE parts keys of one table, by group for example.

        Raises ConfigError if DRIVER is no DB-API module, or its way to write parameters is not known.
        """
        self._driver = importlib.import_module(driver) if isinstance(driver, str) else driver
        self._connect = connect
        self._table = _checked_table(table)
        self._scope = scope
        self._done = DoneKeys(cache_size)
        #: Connections of `guard` that nobody uses: as many as listeners worked at once.
        self._idle: list[DatabaseConnection] = []
        style = paramstyle or getattr(self._driver, "paramstyle", "")
        if style not in _PARAMETERS or not hasattr(self._driver, "IntegrityError"):
            raise ConfigError(
                f"{self._driver.__name__} is no DB-API driver with a paramstyle of {', '.join(_PARAMETERS)}"
                f" (it has {style!r}): hand over the driver's module, or a paramstyle",
                field="driver",
                value=self._driver.__name__,
            )
        self._by_name = style in _BY_NAME
        first, second = _PARAMETERS[style]
        self._insert = f"INSERT INTO {self._table} (scope, key_done) VALUES ({first}, {second})"

    def create_table(self, connection: DatabaseConnection) -> None:
        """Make the table unless it is there, and commit."""
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
        """Mark KEY in the transaction of CONNECTION; the block gets True unless it was marked before.

        Nothing is committed here. Raises what the database raises, and InvalidArgument for a key that is too long.
        """
        yield self._is_first(connection, key)

    def done(self, key: str) -> None:
        """Hear that the transaction in which KEY was marked has been committed."""
        self._done.add(key)

    def guard(
        self, work: Callable[..., object] | None = None, *, key: Key = _message_id
    ) -> Callable[..., Any]:
        """Return a listener that calls WORK(message, connection) once for each KEY(message), and commits; a decorator.

        What WORK raises, or a failure that it returns, undoes the transaction; the message is redelivered.
        The key is the message id unless KEY says otherwise, which tells sends apart, not events that were sent twice.
        """
        if work is None:
            return partial(self.guard, key=key)
        if is_async(work):
            raise ConfigError(
                "a DB-API connection blocks, which a coroutine must not: guard an ordinary function, which is called on"
                " a thread",
                field="listener",
            )
        if self._connect is None:
            raise ConfigError(
                "guard opens connections itself: hand over connect=…, a function that returns one",
                field="connect",
            )

        @wraps(work)
        def listener(message: ReceivedMessage) -> object:
            name = key(message) or ""
            return None if name in self._done else self._do(work, message, name)

        listener.pocketmq_once = self  # type: ignore[attr-defined]
        return listener

    def _do(self, work: Callable[..., object], message: ReceivedMessage, key: str) -> object:
        """Call WORK with MESSAGE in a transaction of its own, unless KEY is marked; return what it says."""
        assert self._connect is not None
        connection = self._idle.pop() if self._idle else self._connect()
        try:
            said = work(message, connection) if self._is_first(connection, key) else None
            if failure_of(said) is None:
                connection.commit()
                self._done.add(key)
            else:
                connection.rollback()
        except BaseException:
            # Whatever it is: the transaction is undone, and the connection may be broken.
            self._discard(connection)
            raise
        self._idle.append(connection)
        return said

    def _discard(self, connection: DatabaseConnection) -> None:
        try:
            connection.rollback()
        except self._driver.Error as error:
            facts = Facts(driver=self._driver.__name__, reason=repr(error))
            logger.debug("transaction not undone by a broken connection %s", facts)
        finally:
            connection.close()

    def close(self) -> None:
        """Close the connections that `guard` opened; of a consumer that is closed."""
        while self._idle:
            self._idle.pop().close()

    def _is_first(self, connection: DatabaseConnection, key: str) -> bool:
        if not 0 < len(key) <= KEY_CHARACTERS_MAX:
            raise InvalidArgument(
                f"the key has {len(key)} characters, but must have 1 to {KEY_CHARACTERS_MAX}: take a digest of it",
                field="key",
                limit=KEY_CHARACTERS_MAX,
                value=len(key),
            )
        return key not in self._done and self._mark(connection, key)

    def _mark(self, connection: DatabaseConnection, key: str) -> bool:
        """Insert KEY; return False if it is there. The application's own work in the transaction is not touched."""
        values: Any = {"scope": self._scope, "key": key} if self._by_name else (self._scope, key)
        # An error ends a transaction in some databases (PostgreSQL), but not behind a savepoint.
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
        """Open a transaction where the driver does not: SQLite's opens none for a savepoint, whose release commits."""
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
