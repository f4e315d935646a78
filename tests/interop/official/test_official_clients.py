"""The official clients of Apache RocketMQ 5, unmodified and from their registries, against our broker.

All scenarios that are selected are played at once, against one broker, when the first of them is asked for; a test then
says what became of its own. Where a language's tool chain is missing, or its client cannot be had, its tests skip; in
CI they fail, and say so.
"""

from __future__ import annotations

import asyncio

import pytest

from .campaign import Outcomes, Pair, all_pairs, play
from .driver import leave_out, need
from .programs import PROGRAMS, BuildFailed

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.processes, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    selected: list[Pair] = [
        (str(item.callspec.params["language"]), str(item.callspec.params["scenario"]))
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
    ]
    playable = [pair for pair in selected if not PROGRAMS[pair[0]].missing()]
    return asyncio.run(play(playable, tmp_path_factory.mktemp("official")))


@pytest.mark.parametrize(("language", "scenario"), all_pairs())
def test_an_official_client_works(
    language: str, scenario: str, request: pytest.FixtureRequest
) -> None:
    need(PROGRAMS[language])
    outcomes: Outcomes = request.getfixturevalue("outcomes")
    failure = outcomes.failures[language, scenario]
    if isinstance(failure, BuildFailed):  # Without a network, as a rule.
        leave_out(f"the official {language} client was not built: {failure}")
    if failure is not None:
        raise failure
