"""The brokers of `pocketmq serve --brokers N`: processes on one machine with one name server, named by number.

A broker serves from one event loop, so that it uses one core; several brokers use several. The process that the user
starts runs the name server and watches; each broker is a process of its own, `pocketmq broker`, with the same
configuration but for:

    name                 broker-1 …; where the configuration has a name of its own, NAME-1 …
    store                STORE/broker-1 …
    port                 broker.port, and as many after it; 0: free ones
    advertised_address   if there is one: its port, and as many after it

A broker that ends is started again, on the port that it had: after a second, and after twice as long each time that it
ends within a minute, up to half a minute, for as long as this process runs. The others continue meanwhile. A broker
that does not come up at the start ends all: that is a mistake in the settings, most likely. If this process is killed
the brokers notice, by the end of their standard input, and stop cleanly.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from ..broker.config import BrokerConfig
from ..proto.errors import ConfigError, ConnectionLost
from .server_process import ServerProcess, ServerProcesses
from .settings import Settings

logger = logging.getLogger(__name__)

_PORT_MAX: Final = 65_535
#: Time until a broker that has ended is started again: the first, and the longest.
_AGAIN_S: Final = 1.0
_AGAIN_MAX_S: Final = 30.0
#: One that served so long has not ended for a reason that it will meet again at once.
_STEADY_S: Final = 60.0


def check_many(settings: Settings, count: int, *, replica_set: str = "", with_faults: bool) -> None:
    """Raise ConfigError if COUNT brokers cannot have SETTINGS or a REPLICA_SET."""
    if replica_set or settings.replication.replica_set:
        raise ConfigError(
            "brokers of --brokers store different messages, those of a --replica-set the same. Give only one of both"
            " (`pocketmq replicas quickstart` runs a replica set on one machine)",
            field="brokers",
            value=count,
        )
    if settings.broker.java_slaves:
        raise ConfigError(
            "broker.java_slaves needs a single broker, which Java slaves find at broker.java_slaves_port. Leave out"
            " --brokers, or that setting",
            field="brokers",
            value=count,
        )
    if with_faults:
        raise ConfigError(
            "--faults is for one broker: leave out --brokers", field="brokers", value=count
        )
    for field, port in (
        ("port", settings.broker.port),
        ("advertised_address", _port(settings.broker.advertised_address)),
    ):
        if port + count - 1 > _PORT_MAX:
            raise ConfigError(
                f"broker.{field}: {count} brokers take the ports from {port} on, and {_PORT_MAX} is the last there is",
                field=field,
                value=port,
            )


def numbered(settings: Settings, number: int) -> Settings:
    """Return the SETTINGS of the broker of that NUMBER, from 1 on."""
    config = settings.broker
    own = config.name != BrokerConfig().name
    address = config.advertised_address
    if address:
        address = f"{address.rpartition(':')[0]}:{_port(address) + number - 1}"
    return settings.with_options(
        broker_name=f"{config.name if own else 'broker'}-{number}",
        broker_port=config.port + number - 1 if config.port else 0,
        advertised_address=address,
        store=Path(settings.store.path) / f"broker-{number}",
    )


def _port(address: str) -> int:
    return int(address.rpartition(":")[2]) if address else 0


class BrokerProcesses:
    """COUNT brokers of SETTINGS; WORDS: options of `pocketmq broker` that are the same for all."""

    #: Of objects: it keeps none for its brokers.
    kept = 0

    def __init__(self, settings: Settings, count: int, words: Sequence[str]) -> None:
        self._settings = [numbered(settings, number) for number in range(1, count + 1)]
        self._words = words
        self._nameserver = ""
        self._processes = ServerProcesses()
        self._serving: dict[str, ServerProcess] = {}
        self._watching: list[asyncio.Task[None]] = []

    async def start(self, nameserver: str) -> list[dict[str, Any]]:
        """Start all, which register with NAMESERVER; return what their ready lines say, each with its name.

        Raises Exit, with its code, if one ends before it serves; what it said is on standard error.
        """
        self._nameserver = nameserver
        starting = [asyncio.create_task(self._start(one)) for one in self._settings]
        try:
            started = await asyncio.gather(*starting)
        except ConnectionLost as error:
            click.echo(f"pocketmq: {error.message}; all are stopped", err=True)
            raise click.exceptions.Exit(max(int(error.details["code"]), 1)) from error
        finally:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
        self._settings = [
            replace(one, broker=replace(one.broker, port=_port_of(one, process)))
            for one, process in zip(self._settings, started, strict=True)
        ]
        self._watching = [asyncio.create_task(self._watch(one)) for one in self._settings]
        return [
            {"name": one.broker.name} | process.ready
            for one, process in zip(self._settings, started, strict=True)
        ]

    async def _start(self, settings: Settings) -> ServerProcess:
        broker = settings.broker
        words = ["--name", broker.name, "--port", str(broker.port), *self._words]
        words += ["--nameserver", self._nameserver]
        if broker.advertised_address:
            words += ["--advertised-address", broker.advertised_address]
        process = ServerProcess(
            Path(settings.store.path), *words, verb="broker", waits=False, is_child=True
        )
        try:
            self._serving[broker.name] = await self._processes.start(process)
        except ConnectionLost as error:
            code = error.details["code"]
            raise ConnectionLost(
                f"{broker.name} ended with code {code} before it served", code=code
            ) from None
        return process

    async def _watch(self, settings: Settings) -> None:
        """Start the broker of SETTINGS again whenever it has ended."""
        loop = asyncio.get_running_loop()
        name, delay_s = settings.broker.name, _AGAIN_S
        while True:
            began = loop.time()
            code = await self._processes.ended(self._serving[name])
            if loop.time() - began > _STEADY_S:
                delay_s = _AGAIN_S
            process = None
            while process is None:
                logger.error(
                    "a broker has ended, and is started again",
                    extra={"broker": name, "code": code, "in_s": delay_s},
                )
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _AGAIN_MAX_S)
                try:
                    process = await self._start(settings)
                except ConnectionLost as error:
                    code = int(error.details["code"])
                except OSError as error:  # No memory, or no process to be had: it is tried again.
                    code = error.errno or 1
            logger.warning("a broker serves again", extra={"broker": name, "pid": process.pid})

    def reload(self) -> None:
        """Have all read settings, certificates and users again."""
        for process in self._serving.values():
            process.send_signal(signal.SIGHUP)

    async def stop(self) -> None:
        """Stop all at once, and wait until each has saved what it saves."""
        for task in self._watching:
            task.cancel()
        await asyncio.gather(*self._watching, return_exceptions=True)
        try:
            await self._processes.stop()
        except BaseException:  # A second Ctrl-C does not wait.
            self._processes.kill()
            raise


def _port_of(settings: Settings, process: ServerProcess) -> int:
    """Return the port that PROCESS listens on: one that was free at its start stays its own."""
    if settings.broker.port or settings.broker.advertised_address:
        return settings.broker.port
    return _port(process.ready["broker"])
