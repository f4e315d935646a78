"""Play the scenarios of official clients, against one broker, languages and scenarios side by side.

    python -m tests.interop.official.campaign --language go --scenario fifo --repeat 10

Without options everything is played once, on our own carrier; `--grpc grpcio` plays it on the other. A line a scenario
says how it went and how long it took.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pocketmq.client import AsyncAdmin
from pocketmq.proto.carriers import GRPC_CHOICES

from ... import served
from . import scenarios
from .ageing import aged, ageing_server
from .driver import Driver
from .programs import PROGRAMS
from .stage import Peer, Server, Stage, connected
from .together import one_topic, survived

#: The scenarios of together.py: played by all languages at once, when the others are through.
ONE_TOPIC: Final = "one_topic"
STOPPED: Final = "stopped"
KILLED: Final = "killed"
#: The one of ageing.py: with a broker of its own, for so long.
AGED: Final = "aged"
AGED_S: Final = 20.0
#: Scenarios of one language at the same time: they wait for most of their time, and clients give up a call after 3 s.
_TOGETHER: Final = 6
_SCENARIO_S: Final = 100.0

Pair = tuple[str, str]


def all_pairs() -> list[Pair]:
    """Return (language, scenario) of all that there is."""
    joint = [
        (name, title)
        for title in (ONE_TOPIC, STOPPED, KILLED, AGED)
        for name, program in PROGRAMS.items()
        if title != STOPPED or program.survives_resets or served.chosen() == "builtin"
    ]
    return scenarios.pairs() + joint


@dataclass
class Outcomes:
    """What became of each (language, scenario): None where all was as it should be."""

    failures: dict[Pair, BaseException | None] = field(default_factory=dict)
    #: Told (language, scenario), what went wrong if something did, and how many seconds it took.
    tell: Callable[[Pair, BaseException | None, float], None] = lambda *_: None

    def add(self, pair: Pair, failure: BaseException | None, seconds: float) -> None:
        """Note what became of PAIR."""
        self.failures[pair] = failure
        self.tell(pair, failure, seconds)


async def play(
    pairs: Iterable[Pair],
    folder: Path,
    outcomes: Outcomes | None = None,
    *,
    aged_s: float = AGED_S,
) -> Outcomes:
    """Play PAIRS, with stores in FOLDER; add what became of each to OUTCOMES, and return them."""
    wanted, outcomes = list(dict.fromkeys(pairs)), outcomes or Outcomes()
    ageing = [name for name, title in wanted if title == AGED]
    others = [pair for pair in wanted if pair[1] != AGED]
    languages = list(dict.fromkeys(language for language, _ in others))
    if others:
        server = await asyncio.to_thread(Server, folder)
        async with _cast(languages, server, folder, outcomes) as cast:
            await asyncio.gather(
                *[cast.language(name, [t for n, t in others if n == name]) for name in languages]
            )
            await cast.joint([n for n, t in others if t == ONE_TOPIC])
            for title, end in ((STOPPED, server.stop_and_start), (KILLED, server.kill_and_start)):
                await cast.survive([n for n, t in others if t == title], title, end)
    if ageing:
        server = await asyncio.to_thread(ageing_server, folder / AGED)
        async with _cast(ageing, server, folder, outcomes) as cast:
            await cast.age(ageing, server, aged_s)
    return outcomes


@asynccontextmanager
async def _cast(
    languages: Sequence[str], server: Server, folder: Path, outcomes: Outcomes
) -> AsyncIterator[_Cast]:
    """Connect LANGUAGES to SERVER, and stop it in the end."""
    try:
        async with (
            connected(server) as (admin, peer),
            _drivers(languages, server, folder) as drivers,
        ):
            yield _Cast(drivers, admin, peer, outcomes)
    finally:
        await asyncio.to_thread(server.stop)


@asynccontextmanager
async def _drivers(
    languages: Sequence[str], server: Server, folder: Path
) -> AsyncIterator[dict[str, Driver | BaseException]]:
    """Start the programs of LANGUAGES; a language whose program does not start has the failure in its place."""

    async def start(name: str) -> Driver:
        return await Driver.start(PROGRAMS[name], server.address, folder / f"{name}.log")

    async with AsyncExitStack() as stack:
        found = await asyncio.gather(*map(start, languages), return_exceptions=True)
        for driver in found:
            if isinstance(driver, Driver):
                stack.push_async_callback(driver.stop)
        yield dict(zip(languages, found, strict=True))


class _Cast:
    """Plays scenarios and writes down what became of them."""

    def __init__(
        self,
        drivers: dict[str, Driver | BaseException],
        admin: AsyncAdmin,
        peer: Peer,
        outcomes: Outcomes,
    ) -> None:
        self._drivers = drivers
        self._admin = admin
        self._peer = peer
        self._outcomes = outcomes

    def _stage(self, language: str, title: str) -> Stage:
        driver = self._drivers[language]
        if isinstance(driver, BaseException):
            raise driver
        return Stage(driver, self._admin, self._peer, title)

    async def language(self, name: str, titles: Sequence[str]) -> None:
        """Play the scenarios TITLES of the language NAME, several at a time."""
        few = asyncio.Semaphore(_TOGETHER)

        async def one(title: str) -> None:
            async with few:
                await self._one(name, title)

        await asyncio.gather(*[one(title) for title in titles if title in scenarios.SCENARIOS])

    async def _one(self, language: str, title: str) -> None:
        begun = time.monotonic()
        failure: BaseException | None = None
        try:
            async with asyncio.timeout(_SCENARIO_S), self._stage(language, title) as stage:
                await scenarios.SCENARIOS[title][0](stage)
        except Exception as error:  # It is the scenario's outcome, whatever it is.
            failure = error
        self._outcomes.add((language, title), failure, time.monotonic() - begun)

    async def joint(self, languages: Sequence[str]) -> None:
        """Play the scenario of one topic."""
        able, begun = self._able(languages, ONE_TOPIC), time.monotonic()
        failure: BaseException | None = None
        try:
            async with AsyncExitStack() as stack:
                stages = [
                    await stack.enter_async_context(self._stage(name, ONE_TOPIC)) for name in able
                ]
                if stages:
                    await one_topic(stages)
        except Exception as error:  # As above.
            failure = error
        for name in able:
            self._outcomes.add((name, ONE_TOPIC), failure, time.monotonic() - begun)

    async def survive(
        self, languages: Sequence[str], title: str, end_and_start: Callable[[], None]
    ) -> None:
        """Play the scenario TITLE: END AND START the broker."""
        able, begun = self._able(languages, title), time.monotonic()
        if able:
            stages = [self._stage(name, title) for name in able]
            for name, failure in (await survived(stages, end_and_start)).items():
                self._outcomes.add((name, title), failure, time.monotonic() - begun)

    async def age(self, languages: Sequence[str], server: Server, seconds: float) -> None:
        """Play the scenario of connections that grow old, for SECONDS."""
        able, begun = self._able(languages, AGED), time.monotonic()
        stages = [self._stage(name, AGED) for name in able]
        found: dict[str, BaseException | None] = dict.fromkeys(able)
        try:
            found |= await aged(stages, server, seconds) if stages else {}
        except Exception as error:  # As above.
            found = dict.fromkeys(able, error)
        for name, failure in found.items():
            self._outcomes.add((name, AGED), failure, time.monotonic() - begun)

    def _able(self, languages: Sequence[str], title: str) -> list[str]:
        """Return those of LANGUAGES whose program runs."""
        for name in languages:
            driver = self._drivers[name]
            if isinstance(driver, BaseException):
                self._outcomes.add((name, title), driver, 0.0)
        return [name for name in languages if isinstance(self._drivers[name], Driver)]


def main() -> int:
    """Play what the command line asks for; return how many scenarios failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--language", action="append", choices=list(PROGRAMS))
    parser.add_argument(
        "--scenario",
        action="append",
        choices=[*scenarios.SCENARIOS, ONE_TOPIC, STOPPED, KILLED, AGED],
    )
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--aged-s", type=float, default=AGED_S, help=f"Seconds of scenario {AGED}.")
    parser.add_argument("--grpc", choices=GRPC_CHOICES, default=served.chosen())
    parser.add_argument("--keep", type=Path, help="Leave store and logs in this folder.")
    options = parser.parse_args()
    served.choose(options.grpc)
    wanted = [
        (language, title)
        for language, title in all_pairs()
        if (options.language is None or language in options.language)
        and (options.scenario is None or title in options.scenario)
    ]
    for name, program in PROGRAMS.items():
        if program.missing():
            print(f"LEFT OUT: {name} needs {', '.join(program.missing())}", file=sys.stderr)
    wanted = [pair for pair in wanted if not PROGRAMS[pair[0]].missing()]
    if not wanted:
        parser.error("no scenario that was asked for can be played here")
    failed = 0
    for _ in range(options.repeat):
        folder = options.keep or Path(tempfile.mkdtemp(prefix="official-"))
        folder.mkdir(parents=True, exist_ok=True)
        outcomes = asyncio.run(play(wanted, folder, Outcomes(tell=_tell), aged_s=options.aged_s))
        failed += sum(failure is not None for failure in outcomes.failures.values())
        if options.keep is None:
            shutil.rmtree(folder)
    return failed


def _tell(pair: Pair, failure: BaseException | None, seconds: float) -> None:
    language, title = pair
    how = "ok" if failure is None else "FAILED"
    print(f"{how:7}{seconds:7.1f} s  {language:7}{title}", flush=True)
    if failure is not None:
        traceback.print_exception(failure, limit=-4, file=sys.stdout)


if __name__ == "__main__":
    sys.exit(min(main(), 100))
