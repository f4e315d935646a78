"""Official clients through failovers of a replica set: the short form of failovers.py, which `make interop` plays.

One replica set fails over under all clients that were asked for. A test then states what became of one client.
"""

from __future__ import annotations

import asyncio

import pytest

from ...served import need_own
from .driver import leave_out, need
from .failovers import Traffic, failed_over
from .programs import PROGRAMS, BuildFailed

pytestmark = [pytest.mark.long, pytest.mark.alone, pytest.mark.processes, pytest.mark.timeout(900)]

FAILOVERS = 2


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Traffic | BuildFailed]:
    """What each client that was asked for sent and received, or why its program was not built."""
    need_own("replicas have no grpcio")
    selected = [
        str(item.callspec.params["language"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
    ]
    found: dict[str, Traffic | BuildFailed] = {}
    playable: list[str] = []
    for language in selected:
        if PROGRAMS[language].missing():
            continue
        try:
            PROGRAMS[language].ready()
        except BuildFailed as error:  # Without a network, as a rule.
            found[language] = error
        else:
            playable.append(language)
    folder = tmp_path_factory.mktemp("failovers")
    traffics = asyncio.run(failed_over(playable, folder, FAILOVERS))
    return found | {traffic.language: traffic for traffic in traffics}


@pytest.mark.parametrize("language", PROGRAMS)
def test_what_was_acknowledged_is_received_and_nothing_else(
    language: str, request: pytest.FixtureRequest
) -> None:
    need(PROGRAMS[language])
    outcomes: dict[str, Traffic | BuildFailed] = request.getfixturevalue("outcomes")
    traffic = outcomes[language]
    if isinstance(traffic, BuildFailed):
        leave_out(f"the official {language} client was not built: {traffic}")

    assert traffic.missing == set()
    assert traffic.foreign == set()
    assert len(traffic.acknowledged) >= 30
