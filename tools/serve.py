"""`pocketmq serve`, `nameserver` and `broker`: the servers as processes.

Only this module handles the configuration file, ports, signals and logging. It builds the servers with the clock and
the disk of the machine, and waits for SIGTERM or SIGINT. Both stop cleanly; a second SIGINT does not wait. With
`--clock virtual`, messages use a clock that only `pocketmq clock advance` moves; connections, heartbeats and flushes
use the machine's. `serve` runs a name server and a broker on one event loop. With `--brokers N` it runs the name
server, and each broker as a process (serve_many.py).

Standard output has the addresses of the servers. On a terminal a status line follows (status_line.py). Elsewhere one
line for programs follows: `ready ` and a JSON object (`_announce`). Log lines go to standard error (log_lines.py).
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from .. import __version__
from ..client.name_server_addresses import DEFAULT_NAME_SERVERS
from ..proto.access.audit import Audit
from ..proto.carriers import GRPC_CHOICES
from ..proto.clock import Clock, SystemClock, VirtualClock
from ..proto.errors import ConfigError
from ..proto.rpc.listening import connections_fitting, raise_descriptor_limit
from ..proto.rpc.turn_loop import TurnLoop
from ..proto.services.settings import LiveSettings
from ..proto.tls import Trust
from .counted import counted
from .log_lines import LEVELS, LogConfig, configure_logging, set_levels
from .options import COUNT, READY, Decorator, nameserver_option, with_options
from .process_memory import Collector, keep_freed_memory
from .settings import Settings, load_settings, sample

if TYPE_CHECKING:  # A name server needs no broker, nor store.
    from ..broker.broker import Broker, Network, SiteParts
    from ..broker.config import BrokerConfig
    from ..nameserver.config import NameServerConfig
    from ..nameserver.nameserver import NameServer
    from ..proto.rpc.pages import Page
    from ..store.config import StoreConfig
    from ..store.disk import Disk
    from .faults import Faults
    from .serve_many import BrokerProcesses
    from .serve_replica import ReplicaServer
    from .status_line import StatusLine

logger = logging.getLogger(__name__)

#: How long a broker waits for its name servers before it reports that it serves.
_REGISTER_TIMEOUT_S: Final = 5.0
#: How often the size of tables is checked, see process_memory.py.
_COLLECTOR_TICK_S: Final = 1.0
#: Key of --insecure in the context of a command.
_INSECURE: Final = "pocketmq.insecure"


def _note_insecure(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    context.meta[_INSECURE] = value


def _check_reach(section: str, config: BrokerConfig | NameServerConfig) -> None:
    """Refuse to listen beyond this machine without authentication, except with --insecure."""
    from ..proto.access.policies import is_loopback

    guarded = config.users or config.tls_ca
    if guarded or is_loopback(config.host) or click.get_current_context().meta[_INSECURE]:
        return
    raise ConfigError(
        f"{section}.host is {config.host}: other machines can connect, and without users everyone may do everything."
        f" Set {section}.users (docs/users-and-acls.md) or {section}.tls_ca, or give --insecure",
        field="host",
        value=config.host,
    )


#: Options of all servers.
_server_options = with_options(
    click.option(
        "--config",
        "file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="YAML file with settings. Options override it.",
    ),
    click.option(
        "--host",
        metavar="ADDRESS",
        help="Address to listen on. One that other machines reach needs users, or --insecure.  [default: 127.0.0.1]",
    ),
    click.option(
        "--grpc",
        type=click.Choice(GRPC_CHOICES),
        help="HTTP/2 server; grpcio is slower.  [default: builtin]",
    ),
    click.option(
        "--insecure",
        is_flag=True,
        envvar="POCKETMQ_INSECURE",
        show_envvar=True,
        expose_value=False,
        callback=_note_insecure,
        help="Allow to listen on other addresses than loopback without users: every client may do everything.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(LEVELS, case_sensitive=False),
        help="Lowest level of log lines on standard error.  [default: warning]",
    ),
)


def _port_option(name: str, what: str, default: int) -> Decorator:
    text = f"{what}; 0: a free port.  [default: {default}]"
    return click.option(name, type=click.IntRange(0, 65535), help=text)


_address_option = click.option(
    "--advertised-address",
    metavar="HOST:PORT",
    help="Address that clients connect to.  [default: from the file, or the address it listens on]",
)
_store_option = click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of the store, created if missing.  [default: pocketmq/store in the user's data folder]",
)
_force_option = click.option(
    "--force", is_flag=True, help="Create a store in a folder that has other files."
)


#: Options for the clock of a broker.
_clock_options = with_options(
    click.option(
        "--clock",
        type=click.Choice(["system", "virtual"]),
        default="system",
        show_default=True,
        help="Clock of messages. A virtual one moves only by `pocketmq clock advance`, and is noted in the store.",
    ),
    click.option(
        "--force-clock",
        is_flag=True,
        help="Use the system's clock for a store that was written with a virtual clock.",
    ),
)


#: What makes a broker inject faults.
_faults_options = with_options(
    click.option(
        "--faults",
        "faults",
        metavar="KIND[=10%],…",
        help="For tests: redeliver, duplicate, reorder, late-ack, cut-streams: all that at-least-once allows.",
    ),
    click.option("--seed", type=int, default=0, help="Seed of --faults.", show_default=True),
)


def _faults(options: dict[str, Any]) -> Faults | None:
    if options["faults"] is None:
        return None
    from .faults import Faults, parse_faults

    return Faults(parse_faults(options["faults"]), options["seed"])


#: Options of a broker in a replica set.
_replica_options = with_options(
    click.option(
        "--replica-set", help="Name of the replica set, which is also the name of the broker."
    ),
    click.option(
        "--replica-id",
        type=COUNT,
        help="Number of the replica in its set, from 1. Never change it.",
    ),
    click.option(
        "--zookeeper",
        metavar="HOST:PORT[,...]",
        help="ZooKeeper servers with the metadata of the replica set.",
    ),
    click.option(
        "--replication-listen",
        metavar="HOST:PORT",
        help="Address to listen on for other replicas.  [default: 127.0.0.1:8082]",
    ),
    click.option(
        "--min-in-sync",
        type=COUNT,
        help='Replicas, with the master, that must have a message before acks="replicas" acknowledges it.'
        "  [default: 1]",
    ),
)


def _replication(options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of the section `replication` in OPTIONS."""
    servers = options["zookeeper"]
    return {
        "replica_set": options["replica_set"],
        "replica_id": options["replica_id"],
        "zookeeper": None if servers is None else tuple(servers.split(",")),
        "listen": options["replication_listen"],
        "min_in_sync": options["min_in_sync"],
    }


def _time(options: dict[str, Any]) -> _Time:
    virtual, force = options["clock"] == "virtual", options["force_clock"]
    if virtual and force:
        raise click.UsageError("--force-clock needs the system's clock: leave out --clock virtual.")
    return _Time(virtual=virtual, force=force)


@click.command()
@_store_option
@_force_option
@_clock_options
@_faults_options
@_replica_options
@_port_option("--port", "Port of the broker", 8081)
@_port_option("--nameserver-port", "Port of the name server", 9876)
@_address_option
@click.option(
    "--brokers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of brokers, one process each, on ports from --port on, with stores STORE/broker-1 …",
)
@click.option(
    "--print-config", is_flag=True, help="Print a configuration file with every setting, and exit."
)
@_server_options
def serve(print_config: bool, file: Path | None, log_level: str | None, **options: Any) -> None:
    """Run a name server and a broker until SIGTERM or Ctrl-C.

    Both run in one process. With --brokers N the name server starts N brokers, one process and core each; every topic
    is on all of them. Prints the addresses when it serves.

    \b
    Example: pocketmq serve --store data --config pocketmq.yaml
    """
    if print_config:
        click.echo(sample(), nl=False)
        return

    def load() -> Settings:
        settings = load_settings(file).with_options(
            broker_host=options["host"],
            nameserver_host=options["host"],
            store=options["store"],
            broker_port=options["port"],
            advertised_address=options["advertised_address"],
            nameserver_port=options["nameserver_port"],
            grpc=options["grpc"],
            replication=_replication(options) if options["brokers"] == 1 else None,
            log_level=log_level,
        )
        if not settings.broker.users or settings.nameserver.users:
            return settings
        same = {key: getattr(settings.broker, key) for key in ("users", "plaintext_credentials")}
        return settings.given("as the broker's", nameserver=same)

    time = _time(options)
    faults = _faults(options)
    if options["brokers"] > 1:
        servers = _Servers(
            load,
            with_nameserver=True,
            brokers=_brokers(load(), file, log_level, faults, options),
        )
    else:
        servers = _Servers(
            load, with_nameserver=True, time=time, force=options["force"], faults=faults
        )
    _run(servers)


def _brokers(
    settings: Settings,
    file: Path | None,
    log_level: str | None,
    faults: Faults | None,
    options: dict[str, Any],
) -> BrokerProcesses:
    """Return the brokers of --brokers. Raises ConfigError."""
    from ..store.os_disk import OsDisk
    from .serve_many import BrokerProcesses, check_many
    from .stores.locations import check_stores_of_brokers

    count = options["brokers"]
    check_many(
        settings, count, replica_set=options["replica_set"] or "", with_faults=faults is not None
    )
    check_stores_of_brokers(OsDisk(), settings.store.path, count, force=options["force"])
    words = [] if log_level is None else ["--log-level", log_level]
    words += ["--clock", options["clock"], "--grpc", settings.broker.grpc]
    words += [] if file is None else ["--config", str(file)]
    words += [] if options["host"] is None else ["--host", options["host"]]
    flags = {
        "--force": options["force"],
        "--force-clock": options["force_clock"],
        "--insecure": click.get_current_context().meta[_INSECURE],
    }
    return BrokerProcesses(settings, count, words + [name for name, on in flags.items() if on])


@click.command()
@_port_option("--port", "Port", 9876)
@_server_options
def nameserver(
    port: int | None,
    file: Path | None,
    host: str | None,
    grpc: str | None,
    log_level: str | None,
) -> None:
    """Run a name server until SIGTERM or Ctrl-C.

    \b
    Example: pocketmq nameserver --port 9876
    """

    def load() -> Settings:
        return load_settings(file).with_options(
            nameserver_host=host, nameserver_port=port, grpc=grpc, log_level=log_level
        )

    _run(_Servers(load, with_nameserver=True))


@click.command()
@_store_option
@_force_option
@_clock_options
@_replica_options
@_port_option("--port", "Port", 8081)
@click.option("--name", metavar="NAME", help="Unique name of the broker.  [default: from the file]")
@_address_option
@click.option(
    "--child", is_flag=True, hidden=True, help="Started by serve_many.py: stop with the parent."
)
@nameserver_option
@_server_options
def broker(
    nameserver: str, file: Path | None, log_level: str | None, *, child: bool, **options: Any
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    It registers with all name servers.

    \b
    Example: pocketmq broker --name broker-b --store data-b --port 8082
    """
    source = click.get_current_context().get_parameter_source("nameserver")
    trust = Trust().or_environment()

    def load() -> Settings:
        settings = load_settings(file).with_options(
            broker_host=options["host"],
            store=options["store"],
            broker_port=options["port"],
            broker_name=options["name"],
            advertised_address=options["advertised_address"],
            grpc=options["grpc"],
            nameservers=None if source is not ParameterSource.COMMANDLINE else nameserver,
            replication=_replication(options),
            log_level=log_level,
        )
        if source is ParameterSource.ENVIRONMENT:
            listed = tuple(nameserver.replace(";", ",").split(","))
            settings = settings.given("environment", broker={"nameservers": listed})
        if not trust.wanted:
            return settings
        peers = {"peers_tls": True, "peers_tls_ca": trust.ca}
        return settings.given("option or environment", broker=peers)

    time = _time(options)
    servers = _Servers(
        load, with_nameserver=False, time=time, force=options["force"], is_child=child
    )
    _run(servers, servers.name if child else "")


@dataclass(frozen=True, slots=True)
class _Time:
    """The kind of clock of a broker. FORCE: ignore the kind that is noted in the store."""

    virtual: bool
    force: bool

    def clock(self, wall: Clock, disk: Disk, store: StoreConfig) -> Clock:
        """Return WALL, or a virtual clock that continues at the time of STORE."""
        from ..broker.timing.virtual_mark import check_clock

        start_ms = check_clock(
            disk, store, virtual=self.virtual, now_ms=wall.unix_ms(), force=self.force
        )
        return VirtualClock(start_ms) if self.virtual else wall


class _Servers:
    """The servers of one process, from their start to their stop.

    LOAD reads the settings of the file and the options; it raises ConfigError. TIME is None if there is no broker.
    FORCE: accept other files in the folder of the store. FAULTS: faults to inject. BROKERS: brokers in processes of
    their own. IS_CHILD: this process is one of these, and stops when standard input ends.
    """

    def __init__(
        self,
        load: Callable[[], Settings],
        *,
        with_nameserver: bool,
        time: _Time | None = None,
        force: bool = False,
        faults: Faults | None = None,
        brokers: BrokerProcesses | None = None,
        is_child: bool = False,
    ) -> None:
        self._load = load
        self._settings = settings = load()
        self._brokers = brokers
        self._is_child = is_child
        self._faults = faults
        self._force = force
        self._with_nameserver = with_nameserver
        self._time = time
        self._wall = SystemClock()
        #: Of a broker whose standard output is a terminal.
        self._status_line: StatusLine | None = None
        titles = ["nameserver"] * with_nameserver + ["log"]
        if time is not None:
            titles += ["broker", "replication", "store"]
        self._live = LiveSettings(
            {title: settings.sections[title] for title in titles},
            settings.origins,
            audit=Audit(self._wall.unix_ms),
            on_change={"log": set_levels},
        )
        self._servers: list[NameServer | Broker | ReplicaServer] = []
        #: Called at SIGHUP, after the settings are read.
        self._reloads: list[Callable[[], None]] = []

    @property
    def log(self) -> LogConfig:
        """The settings of logging."""
        return self._settings.log

    @property
    def name(self) -> str:
        """The name of its broker."""
        return self._settings.broker.name

    def check_reach(self) -> None:
        """Raise ConfigError for servers without authentication that other machines reach."""
        if self._with_nameserver:
            _check_reach("nameserver", self._settings.nameserver)
        if self._time is not None or self._brokers is not None:
            _check_reach("broker", self._settings.broker)

    async def run(self) -> None:
        """Start, announce it, and stop at a signal."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        stopping = _stop_signals(loop)
        loop.add_signal_handler(signal.SIGHUP, self._hung_up, stopping, sys.stdin.isatty())
        if self._is_child:
            loop.add_reader(sys.stdin.fileno(), _stop_at_end, loop, stopping)
        collector = Collector(lambda: sum(server.kept for server in self._servers))
        collector.begin()
        async with AsyncExitStack() as stack:
            stack.callback(collector.end)
            ready: dict[str, Any] = {}
            if self._with_nameserver:
                ready["nameserver"] = await self._start_nameserver(stack)
            if self._time is not None:
                nameserver = ready.get("nameserver")
                broker = await _unless_set(
                    stopping, self._start_broker(stack, nameserver, self._time)
                )
                if broker is None:
                    return
                ready |= broker
            if self._brokers is not None:
                several = await _unless_set(
                    stopping, self._start_brokers(stack, self._brokers, ready["nameserver"])
                )
                if several is None:
                    return
                ready |= several
            collector.serve(self._wall.now_ms())
            ready |= {"pid": os.getpid(), "started_in_ms": round((loop.time() - began) * 1000)}
            _announce(ready)
            if self._status_line is not None:
                self._status_line.begin()
                stack.callback(self._status_line.erase)
            while not stopping.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_COLLECTOR_TICK_S):
                        await stopping.wait()
                collector.tick(self._wall.now_ms())

    async def _start_nameserver(self, stack: AsyncExitStack) -> str:
        from ..nameserver.nameserver import NameServer

        raise_descriptor_limit()  # The usual 1,024 are few for connections.
        titles = ["nameserver"] if self._time is not None else ["nameserver", "log"]
        server = NameServer.build(
            self._settings.nameserver, clock=self._wall, live=self._live, titles=titles
        )
        await server.start()
        self._servers.append(server)
        stack.push_async_callback(server.stop)
        if self._settings.nameserver.tls_cert:
            self._at_hangup(server.reload_certificate)
        if self._settings.nameserver.users:
            self._at_hangup(server.reload_users)
        return server.address

    def _at_hangup(self, reload: Callable[[], None]) -> None:
        """Call RELOAD at SIGHUP, after those added before."""
        self._reloads.append(reload)

    def _hung_up(self, stopping: asyncio.Event, began_in_terminal: bool) -> None:
        """Reload at SIGHUP; stop if the terminal was closed."""
        if began_in_terminal and not sys.stdin.isatty():
            stopping.set()
        else:
            self._reload()

    def _reload(self) -> None:
        """Read settings, certificates and users again. A wrong file changes nothing."""
        try:
            settings = self._load()
            self._live.reload(settings.sections, settings.origins)
        except ConfigError as error:
            self._live.refused(error)
        for reload in self._reloads:
            reload()

    async def _start_broker(
        self, stack: AsyncExitStack, nameserver: str | None, time: _Time
    ) -> dict[str, Any]:
        from ..broker.broker import Broker
        from ..store.file_sizes import config_of_files
        from ..store.open_files import allow_many_files
        from ..store.os_disk import OsDisk
        from .follow.note import check_promoted
        from .stores.locations import check_new_store

        limits = allow_many_files()
        settings = self._settings
        if nameserver is not None:
            settings = settings.given(
                "the name server of this process", broker={"nameservers": (nameserver,)}
            )
        disk = OsDisk()
        if not self._force:
            check_new_store(disk, settings.store.path)
        check_promoted(disk, settings.store.path)
        settings = settings.with_section(
            "store", config_of_files(disk, settings.store), "the store's files"
        )
        if settings.replication.replica_set:
            return await self._start_replica(stack, settings, disk, time)
        self._live.hold(settings.sections, settings.origins)
        clock = time.clock(self._wall, disk, settings.store)
        server = Broker.build(
            settings.broker,
            settings.store,
            disk=disk,
            clock=clock,
            wall=self._wall,
            network=self._network(),
        )
        await server.start()
        self._servers.append(server)
        stack.push_async_callback(server.stop)
        if settings.broker.names_tls_files:
            self._at_hangup(server.reload_certificate)
        if settings.broker.users:
            self._at_hangup(server.reload_users)
        if not await server.registered(_REGISTER_TIMEOUT_S):
            names = " ".join(settings.broker.nameservers)
            click.echo(f"pocketmq: not registered yet with all of {names}; still trying", err=True)
        recovery = server.recovery
        return {
            "broker": server.address,
            **_console(settings.broker, server),
            "store": settings.store.path,
            "recovery": recovery.to_json() | {"text": recovery.text()},
            "clock": "virtual" if time.virtual else "system",
            **({} if self._faults is None else {"faults": self._faults.text()}),
            "limits": {
                "descriptors": limits.descriptors,
                "open_files": limits.files,
                "connections": connections_fitting(settings.broker.connections_max),
            },
        }

    async def _start_brokers(
        self, stack: AsyncExitStack, brokers: BrokerProcesses, nameserver: str
    ) -> dict[str, Any]:
        stack.push_async_callback(brokers.stop)
        started = await brokers.start(nameserver)
        self._at_hangup(brokers.reload)
        return {
            "broker": started[0]["broker"],
            "brokers": started,
            "store": self._settings.store.path,
        }

    def _network(self) -> Network:
        if self._faults is None:
            from ..broker.broker import Network

            return Network(site=self._site, live=self._live)
        from .faults import FaultyNetwork

        return FaultyNetwork(faults=self._faults, site=self._site, live=self._live)

    def _site(self, parts: SiteParts) -> Page:
        from .console.site import site

        if sys.stdout.isatty():
            from .status_line import StatusLine

            self._status_line = StatusLine(parts, self._wall, sys.stdout)
        return site(parts)

    async def _start_replica(
        self, stack: AsyncExitStack, settings: Settings, disk: Disk, time: _Time
    ) -> dict[str, Any]:
        from .serve_replica import ReplicaServer

        if time.virtual:
            raise ConfigError(
                "--clock virtual needs a single broker: replicas of a set use the clocks of their machines",
                field="clock",
            )
        if settings.broker.grpc != "builtin":
            raise ConfigError(
                f"--grpc {settings.broker.grpc} needs a single broker: replicas use the built-in server. Leave it out",
                field="grpc",
            )
        if self._faults is not None:
            raise ConfigError(
                "--faults is for one broker: the replicas of a set carry calls for each other",
                field="faults",
            )
        time.clock(self._wall, disk, settings.store)
        server = ReplicaServer(settings, disk=disk, clock=self._wall, live=self._live)
        await server.start()
        self._servers.append(server)
        stack.push_async_callback(server.stop)
        if settings.replication.tls_cert or settings.broker.names_tls_files:
            self._at_hangup(server.reload_certificate)
        if settings.broker.users:
            self._at_hangup(server.reload_users)
        return server.ready()


def _console(config: BrokerConfig, server: Broker) -> dict[str, str]:
    """Return the address of the console for browsers on this machine; nothing if they cannot reach it."""
    from ..proto.access.policies import is_loopback

    if config.grpc != "builtin":
        return {}
    if is_loopback(config.host):
        place = server.address
    elif config.host in ("0.0.0.0", "::"):
        place = f"127.0.0.1:{server.port}"
    else:
        return {}
    return {"console": f"{'https' if config.tls_only else 'http'}://{place}/"}


async def _unless_set(
    stopping: asyncio.Event, starting: Coroutine[Any, Any, dict[str, Any]]
) -> dict[str, Any] | None:
    """Return the result of STARTING, or None if STOPPING is set first: ZooKeeper may be unreachable for long."""
    task = asyncio.ensure_future(starting)
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return task.result()
    task.cancel()
    await asyncio.wait((task,))
    return None


def _run(servers: _Servers, name: str = "") -> None:
    """Run SERVERS to their end. NAME: the broker to name in log lines, if several share the log."""
    servers.check_reach()
    configure_logging(servers.log, name)
    keep_freed_memory()
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        runner.run(servers.run())


def _stop_signals(loop: asyncio.AbstractEventLoop) -> asyncio.Event:
    """Return an event that SIGTERM or SIGINT sets."""
    stopping = asyncio.Event()

    def interrupt() -> None:
        stopping.set()
        loop.remove_signal_handler(signal.SIGINT)  # A second Ctrl-C does not wait.

    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    return stopping


def _stop_at_end(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event) -> None:
    """Set STOPPING if standard input has ended: the parent process is gone."""
    if not os.read(sys.stdin.fileno(), 1024):
        loop.remove_reader(sys.stdin.fileno())
        stopping.set()


def _announce(ready: dict[str, Any]) -> None:
    """Print READY for people, and then the line for programs, as JSON.

    It has `nameserver`, `broker`, `console` (addresses), `store`, `recovery`, `clock`, `faults` (if faults are
    injected), `limits` (descriptors, and what they allow), `pid`, `started_in_ms`. With several brokers, `broker` is
    the address of the first, and `brokers` has the `name` and the ready line of each.
    """
    shown = {"nameserver": "name server", "broker": "broker", "store": "store"}
    click.echo(f"PocketMQ {__version__}")
    for name, title in shown.items():
        if name in ready and not (name == "broker" and "brokers" in ready):
            click.echo(f"  {title:12}{ready[name]}")
        if name == "broker" and ready.get("console"):
            click.echo(f"  {'console':12}{ready['console']}")
    for one in ready.get("brokers", ()):
        found = "" if one["recovery"]["clean"] else f", {one['recovery']['text'].splitlines()[0]}"
        click.echo(f"  {one['name']:12}{one['broker']}{found}")
    if not ready.get("recovery", {"clean": True})["clean"]:
        click.echo(f"  {'recovery':12}{ready['recovery']['text']}")
    if ready.get("clock") == "virtual":
        click.echo(f"  {'clock':12}virtual, moved by `pocketmq clock advance 1h`")
    if faults := ready.get("faults"):
        click.echo(f"  {'faults':12}{faults}")
    if limits := ready.get("limits"):
        click.echo(
            f"  {'limits':12}{counted(limits['connections'], 'connection')},"
            f" {counted(limits['open_files'], 'open file')} of the store"
            f" ({limits['descriptors']:,} descriptors)"
        )
    click.echo(f"Try: {_line_to_copy(ready)}")
    if not sys.stdout.isatty():
        click.echo(READY + json.dumps(ready))
    sys.stdout.flush()


def _line_to_copy(ready: dict[str, Any]) -> str:
    if "nameserver" not in ready:
        return "pocketmq brokers"
    place = ready["nameserver"]
    option = "" if place == DEFAULT_NAME_SERVERS else f"--nameserver {place} "
    if "broker" not in ready:
        return f"pocketmq broker {option}".rstrip()
    return f"pocketmq send {option}Hello 'first message'"
