"""A master asks the metadata store whether it is still master, and every one who waits for that is told once."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from pocketmq.broker.replication import leadership as leadership_module
from pocketmq.broker.replication.leadership import Leadership
from pocketmq.broker.replication.registry_sessions import RegistrySessions
from pocketmq.proto.clock import VirtualClock
from pocketmq.proto.errors import (
    MasterFenced,
    Overloaded,
    PocketMQError,
    RegistryUnavailable,
    SessionExpired,
)


class Rig:
    """The leadership of a master: its lease holds, and the metadata store answers, as the test says."""

    def __init__(self) -> None:
        self.lease_holds = True
        self.asked: list[Callable[[bool], None]] = []
        self.told: list[PocketMQError | None] = []
        core: Any = SimpleNamespace(
            in_sync=SimpleNamespace(epoch=7), replica_id=1, check_master=self._check
        )
        unused: Any = None
        self.leadership = Leadership(
            core, lambda: 0, unused, unused, self.asked.append, unused, unused
        )

    def _check(self, now_ms: int) -> None:
        if not self.lease_holds:
            raise MasterFenced("the lease is over")

    def ask(self) -> None:
        self.leadership.when_still_master(self.told.append)

    @property
    def kinds(self) -> list[type]:
        return [type(error) for error in self.told]


@pytest.mark.parametrize("lasts", [True, False])
def test_the_answer_of_the_store_is_passed_on(lasts: bool) -> None:
    rig = Rig()
    rig.ask()
    assert not rig.told

    rig.asked.pop()(lasts)

    assert rig.kinds == [type(None) if lasts else MasterFenced]


def test_who_waits_when_the_epoch_ends_is_fenced_and_told_once() -> None:
    rig = Rig()
    rig.ask()

    rig.leadership.end(MasterFenced("another is master"))
    rig.asked.pop()(True)

    assert rig.kinds == [MasterFenced]


def test_nobody_waits_beyond_the_lease() -> None:
    rig = Rig()
    rig.ask()
    rig.leadership.check_lease()
    assert not rig.told

    rig.lease_holds = False
    rig.leadership.check_lease()

    assert rig.kinds == [MasterFenced]


def test_an_answer_that_comes_after_the_end_of_the_lease_is_none() -> None:
    rig = Rig()
    rig.ask()
    rig.lease_holds = False

    rig.asked.pop()(True)

    assert rig.kinds == [MasterFenced]


def test_so_many_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership_module, "UNSURE_MAX", 2)
    rig = Rig()
    for _ in range(3):
        rig.ask()

    assert rig.kinds == [Overloaded]
    assert len(rig.asked) == 2


# ---------------------------------------------------------------- the question to the metadata store


class _Session:
    """A session of which nothing but the check is used: OUTCOMES are what comes of each; None: it lasts."""

    answered_ms = 5

    def __init__(self, *outcomes: PocketMQError | None) -> None:
        self.outcomes = list(outcomes)
        self.asks = 0
        self.while_asked: Callable[[], None] = lambda: None

    async def check_session(self) -> None:
        self.asks += 1
        self.while_asked()
        if (outcome := self.outcomes.pop(0)) is not None:
            raise outcome


class _User:
    def __init__(self) -> None:
        self.answered: list[int] = []

    def registry_answered(self, sent_ms: int) -> None:
        self.answered.append(sent_ms)


def sessions_with(session: _Session) -> tuple[RegistrySessions, _User]:
    user: Any = _User()

    async def unused() -> Any:
        raise AssertionError("the session is there")

    sessions = RegistrySessions(unused, user, 1, 1_000, VirtualClock(1_700_000_000_000))
    sessions._registry = session  # type: ignore[assignment]
    return sessions, user


async def ask_all(sessions: RegistrySessions, session: Any) -> None:
    while sessions._asked:
        await sessions._asked.popleft().send(session)


async def test_many_questions_are_one_request_but_none_is_answered_by_an_earlier_one() -> None:
    session = _Session(None, None)
    sessions, user = sessions_with(session)
    told: list[str] = []

    def ask(name: str) -> None:
        sessions.check_session(lambda lasts: told.append(f"{name} {lasts}"))

    def ask_once() -> None:
        session.while_asked = lambda: None
        ask("late")

    session.while_asked = ask_once
    ask("first")
    ask("second")
    await sessions._asked.popleft().send(session)  # type: ignore[arg-type]
    assert told == ["first True", "second True"]
    assert user.answered == [5], "the lease is renewed first"

    await ask_all(sessions, session)
    assert told[2:] == ["late True"]
    assert session.asks == 2


@pytest.mark.parametrize("error", [RegistryUnavailable("away"), SessionExpired("over")])
async def test_without_an_answer_nothing_is_known(error: PocketMQError) -> None:
    session = _Session(error)
    sessions, user = sessions_with(session)
    told: list[bool] = []
    sessions.check_session(told.append)

    with pytest.raises(type(error)):
        await ask_all(sessions, session)

    assert told == [False]
    assert not user.answered


async def test_a_question_that_was_not_sent_is_answered_when_the_session_ends() -> None:
    sessions, _ = sessions_with(_Session())
    told: list[bool] = []
    sessions.check_session(told.append)

    sessions._forget()
    assert told == [False]

    sessions._registry = None
    sessions.check_session(told.append)
    assert told == [False, False]
