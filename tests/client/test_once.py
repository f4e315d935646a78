"""A key is done once: marked in the application's transaction, kept or undone with its work."""

from __future__ import annotations

import importlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from pocketmq.client import Deduplicator, PushConsumer, Retry
from pocketmq.client.once import DoneKeys
from pocketmq.proto.errors import ConfigError, InvalidArgument

from .push_world import World, number, store

Connect = Callable[[], Any]


class Bank:
    """A database with one account, and a Deduplicator over it."""

    def __init__(self, driver: str, connect: Connect, **settings: Any) -> None:
        self.connect = connect
        self.once = Deduplicator(driver, connect=connect, **settings)
        self.driver = importlib.import_module(driver)
        with closing(connect()) as connection:
            self.once.create_table(connection)
            self.execute(connection, "DELETE FROM pocketmq_once")
            self.execute(connection, "DROP TABLE IF EXISTS account")
            self.execute(connection, "CREATE TABLE account (balance INTEGER)")
            self.execute(connection, "INSERT INTO account VALUES (0)")
            connection.commit()

    def execute(self, connection: Any, statement: str) -> Any:
        cursor = connection.cursor()
        cursor.execute(statement)
        return cursor

    def pay(self, connection: Any) -> None:
        self.execute(connection, "UPDATE account SET balance = balance + 1")

    @property
    def balance(self) -> int:
        with closing(self.connect()) as connection:
            (balance,) = self.execute(connection, "SELECT balance FROM account").fetchone()
            return int(balance)


def _sqlite(folder: Path) -> Connect:
    return lambda: sqlite3.connect(folder / "bank.db", timeout=10, check_same_thread=False)


@pytest.fixture(params=["sqlite3", "psycopg"])
def bank(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bank]:
    if request.param == "sqlite3":
        made = Bank("sqlite3", _sqlite(tmp_path))
    else:
        psycopg = pytest.importorskip("psycopg")
        where = os.environ.get("POCKETMQ_TEST_POSTGRES")
        if not where:
            pytest.skip("POCKETMQ_TEST_POSTGRES names no database")
        made = Bank("psycopg", lambda: psycopg.connect(where))
    yield made
    made.once.close()


def pay_once(bank: Bank, connection: Any, key: str) -> bool:
    """Do what an application does in its transaction; return whether it was the first time."""
    with bank.once(connection, key) as first:
        if first:
            bank.pay(connection)
    return first


def test_work_is_done_the_first_time_only(bank: Bank) -> None:
    with closing(bank.connect()) as connection:
        assert pay_once(bank, connection, "a")
        connection.commit()
        assert not pay_once(bank, connection, "a")
        assert pay_once(bank, connection, "b")
        connection.commit()

    assert bank.balance == 2


def test_what_is_undone_is_done_again(bank: Bank) -> None:
    with closing(bank.connect()) as connection:
        assert pay_once(bank, connection, "a")
        connection.rollback()
        assert pay_once(bank, connection, "a")
        connection.commit()

    assert bank.balance == 1


def test_a_repeat_leaves_the_other_work_of_the_transaction(bank: Bank) -> None:
    with closing(bank.connect()) as connection:
        pay_once(bank, connection, "a")
        connection.commit()
        bank.pay(connection)
        assert not pay_once(bank, connection, "a")
        bank.pay(connection)
        connection.commit()

    assert bank.balance == 3


def test_a_key_twice_in_one_transaction_that_is_undone_is_not_taken_for_done(bank: Bank) -> None:
    with closing(bank.connect()) as connection:
        assert pay_once(bank, connection, "a")
        assert not pay_once(bank, connection, "a")
        connection.rollback()
        assert pay_once(bank, connection, "a")


def test_scopes_are_apart(bank: Bank) -> None:
    other = Deduplicator(bank.driver, scope="other group")

    with closing(bank.connect()) as connection:
        assert pay_once(bank, connection, "a")
        with other(connection, "a") as first:
            assert first
        connection.commit()


def test_of_two_at_once_one_is_a_repeat(bank: Bank) -> None:
    firsts: list[bool] = []
    begun = threading.Event()

    def second() -> None:
        with closing(bank.connect()) as connection:
            begun.set()
            firsts.append(pay_once(bank, connection, "a"))
            connection.commit()

    with closing(bank.connect()) as connection:
        firsts.append(pay_once(bank, connection, "a"))
        thread = threading.Thread(target=second)
        thread.start()
        begun.wait(10)
        connection.commit()
        thread.join()

    assert firsts == [True, False]
    assert bank.balance == 1


def message(name: str) -> Any:
    return SimpleNamespace(message_id=name, key=f"key of {name}")


class TestGuard:
    """Listeners that remember."""

    def test_a_message_that_comes_again_is_handled_once(self, bank: Bank) -> None:
        listener = bank.once.guard(lambda message, connection: bank.pay(connection))

        for name in ("a", "b", "a", "a"):
            assert listener(message(name)) is None
        fresh = Deduplicator(bank.driver, connect=bank.connect)
        fresh.guard(lambda message, connection: bank.pay(connection))(message("a"))
        fresh.close()

        assert bank.balance == 2

    def test_a_listener_that_raises_is_undone(self, bank: Bank) -> None:
        failing = [True]

        @bank.once.guard(key=lambda message: message.key)
        def listener(message: Any, connection: Any) -> None:
            bank.pay(connection)
            if failing:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            listener(message("a"))
        assert bank.balance == 0
        failing.clear()
        listener(message("a"))
        listener(message("a"))
        assert bank.balance == 1

    @pytest.mark.parametrize("answer", [False, Retry("later")], ids=["false", "retry"])
    def test_a_failure_that_is_returned_is_undone(self, bank: Bank, answer: Any) -> None:
        @bank.once.guard
        def listener(message: Any, connection: Any) -> Any:
            bank.pay(connection)
            return answer

        assert listener(message("a")) is answer
        assert listener(message("a")) is answer
        assert bank.balance == 0

    def test_a_key_that_is_known_asks_nobody(self, bank: Bank) -> None:
        listener = bank.once.guard(lambda message, connection: bank.pay(connection))
        listener(message("a"))
        bank.once.close()
        bank.once._connect = None

        assert listener(message("a")) is None

    def test_connections_are_used_again(self, tmp_path: Path) -> None:
        opened: list[Any] = []

        def connect() -> Any:
            opened.append(_sqlite(tmp_path)())
            return opened[-1]

        bank = Bank("sqlite3", connect)
        opened.clear()
        listener = bank.once.guard(lambda message, connection: bank.pay(connection))
        for name in "abc":
            listener(message(name))

        assert len(opened) == 1
        bank.once.close()
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            opened[0].execute("SELECT 1")

    async def test_a_consumer_that_dies_before_its_commit_repeats_without_effect(
        self, tmp_path: Path
    ) -> None:
        world, bank = World(), Bank("sqlite3", _sqlite(tmp_path))
        store(world.broker, 20)
        calls: list[int] = []

        @bank.once.guard(key=lambda message: str(number(message)))
        def listener(message: Any, connection: Any) -> None:
            calls.append(number(message))
            bank.pay(connection)

        for _ in range(2):
            async with world.consumer(listener, delivery="effectively_once"):
                await world.pass_ms(100)
            world.broker.committed.clear()
        bank.once.close()

        assert sorted(calls) == list(range(20))
        assert bank.balance == 20


def test_effectively_once_needs_a_listener_that_remembers() -> None:
    consumer = PushConsumer("billing", "orders", print, delivery="effectively_once")

    with pytest.raises(ConfigError, match="detects duplicates"):
        consumer.start()


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_keys_out_of_bounds_are_refused(key: str) -> None:
    once = Deduplicator("sqlite3")

    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(InvalidArgument, match="1 to 255"),
        once(connection, key),
    ):
        pass


@pytest.mark.parametrize("table", ["a b", "a;b", "1a", "a.b.c", ""])
def test_odd_names_of_tables_are_refused(table: str) -> None:
    with pytest.raises(ConfigError, match="table is"):
        Deduplicator("sqlite3", table=table)


def test_a_module_that_is_no_driver_is_refused() -> None:
    with pytest.raises(ConfigError, match="no DB-API driver"):
        Deduplicator("json")


def test_guard_says_what_it_needs() -> None:
    async def listener(message: Any, connection: Any) -> None:
        pass

    with pytest.raises(ConfigError, match="coroutine"):
        Deduplicator("sqlite3").guard(listener)
    with pytest.raises(ConfigError, match="connect="):
        Deduplicator("sqlite3").guard(print)


class Recorder:
    """A driver that writes parameters as its style wants, over SQLite."""

    IntegrityError = sqlite3.IntegrityError
    Error = sqlite3.Error
    __name__ = "recorder"

    def __init__(self, paramstyle: str) -> None:
        self.paramstyle = paramstyle


@pytest.mark.parametrize(
    ("style", "statement", "values"),
    [
        ("qmark", "(?, ?)", ("s", "a")),
        ("numeric", "(:1, :2)", ("s", "a")),
        ("named", "(:scope, :key)", {"scope": "s", "key": "a"}),
        ("format", "(%s, %s)", ("s", "a")),
        ("pyformat", "(%(scope)s, %(key)s)", {"scope": "s", "key": "a"}),
    ],
)
def test_parameters_are_written_as_the_driver_wants(
    style: str, statement: str, values: Any
) -> None:
    done: list[tuple[Any, ...]] = []
    cursor = SimpleNamespace(execute=lambda *given: done.append(given), close=lambda: None)
    connection: Any = SimpleNamespace(cursor=lambda: cursor)
    driver: Any = Recorder(style)

    with Deduplicator(driver, scope="s")(connection, "a") as first:
        assert first

    (insert,) = [given for given in done if given[0].startswith("INSERT")]
    assert insert[0].endswith(f"VALUES {statement}")
    assert insert[1] == values


@given(st.lists(st.sampled_from("abcdef"), max_size=60), st.integers(1, 4))
def test_the_keys_that_are_kept_are_the_latest(keys: list[str], size: int) -> None:
    done, latest = DoneKeys(size), list[str]()

    for key in keys:
        assert (key in done) == (key in latest)
        done.add(key)
        latest = [*(other for other in latest if other != key), key][-size:]
