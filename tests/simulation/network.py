"""The network of the simulation: channels that look like grpc.aio's and lead to method tables in the same process.

Client code is the real one down to the channel, servers' is the real one from the method tables on: what lies between,
sockets and grpc, is this. Messages are encoded and decoded as on a wire and travel for a while. A link joins one
machine to one address, as a TCP connection would: messages in one direction keep their order, a link that is cut loses
what is under way and ends every call on it, one that is paused loses nothing and is late.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from random import Random

from .machine import Machine
from .served import Served
from .virtual_loop import LoopClock

#: How long a machine that vanished without a word is thought to live: the servers' keepalive.
KEEPALIVE_MS = 50_000


class Network:
    """Links and servers by address. Latencies come from RANDOM."""

    def __init__(self, clock: LoopClock, random: Random) -> None:
        self.clock = clock
        self.random = random
        self.latency_ms = (0.1, 1.5)
        self._servers: dict[str, Served] = {}
        self._links: dict[tuple[str, str], Link] = {}

    def serve(self, address: str, server: Served) -> None:
        assert address not in self._servers, f"{address} is taken"
        self._servers[address] = server

    def vanish(self, address: str) -> None:
        """Take the server at ADDRESS away: links to it break."""
        self._servers.pop(address, None)
        for (_, target), link in list(self._links.items()):
            if target == address:
                link.cut("the server is gone")

    def server(self, address: str) -> Served | None:
        return self._servers.get(address)

    def link(self, machine: Machine, address: str) -> Link:
        key = machine.name, address
        if key not in self._links:
            self._links[key] = Link(self, machine, address)
        return self._links[key]

    def links_of(self, machine: Machine) -> list[Link]:
        return [link for (name, _), link in self._links.items() if name == machine.name]

    def forget(self, machine: Machine, *, silently: bool) -> None:
        """End MACHINE: its links are reset, or, SILENTLY, found dead when the servers' keepalive notices."""
        machine.die()
        for link in self.links_of(machine):
            del self._links[machine.name, link.address]
            if silently:
                loop = asyncio.get_running_loop()
                loop.call_later(KEEPALIVE_MS / 1000, link.cut, "keepalive")
            else:
                link.cut("the client is gone")


class Ends(ABC):
    """What a link ends when it is cut."""

    @abstractmethod
    def broken(self, reason: str) -> None: ...


class Link:
    """What MACHINE and ADDRESS say to each other."""

    def __init__(self, network: Network, machine: Machine, address: str) -> None:
        self.network = network
        self.machine = machine
        self.address = address
        self.up = True
        self.open: dict[Ends, None] = {}
        self._out = Pipe(self)
        self._back = Pipe(self)
        self._paused = False
        self._lose_request = self._lose_answer = False
        self.cuts = 0

    # --- faults

    def cut(self, reason: str = "connection reset") -> None:
        """Lose what is under way and end every call; the next ones open the connection anew."""
        self.cuts += 1
        self._out.lose()
        self._back.lose()
        broken, self.open = list(self.open), {}
        for call in broken:
            call.broken(reason)

    def take_down(self) -> None:
        """Cut, and let nothing through until `bring_up`."""
        self.up = False
        self.cut("no route to host")

    def bring_up(self) -> None:
        self.up = True

    def pause(self) -> None:
        """Keep what is sent until `heal`."""
        self._paused = True

    def heal(self) -> None:
        self._paused = False
        self._out.flush()
        self._back.flush()

    @property
    def paused(self) -> bool:
        return self._paused

    def lose_next_request(self) -> None:
        """Cut the connection when the next message leaves the client: nobody gets it."""
        self._lose_request = True

    def lose_next_answer(self) -> None:
        """Cut the connection when the server next answers: what it did is done, and nobody hears of it."""
        self._lose_answer = True

    # --- messages

    def to_server(self, deliver: Callable[[], None]) -> None:
        """Have DELIVER run at the server, after what was sent before."""
        if self._lose_request:
            self._lose_request = False
            self.cut("connection reset under a request")
            return
        server = self.network.server(self.address)
        self._out.send(deliver, server.machine if server else self.machine)

    def to_client(self, deliver: Callable[[], None]) -> None:
        """Have DELIVER run at the client, after what was sent before."""
        if self._lose_answer:
            self._lose_answer = False
            self.cut("connection reset under an answer")
            return
        self._back.send(deliver, self.machine)


class Pipe:
    """One direction of LINK: in order, each message after a latency."""

    def __init__(self, link: Link) -> None:
        self._link = link
        #: On their way, oldest first.
        self._travelling: deque[tuple[Callable[[], None], Machine]] = deque()
        self._arrived = 0
        self._epoch = 0

    def send(self, deliver: Callable[[], None], receiver: Machine) -> None:
        network = self._link.network
        self._travelling.append((deliver, receiver))
        loop = asyncio.get_running_loop()
        loop.call_later(
            network.random.uniform(*network.latency_ms) / 1000, self._arrive, self._epoch
        )

    def _arrive(self, epoch: int) -> None:
        """Let the oldest through, whichever message this is the time of: they do not overtake each other."""
        if epoch != self._epoch:
            return
        self._arrived += 1
        if not self._link.paused:
            self.flush()

    def flush(self) -> None:
        while self._arrived and self._travelling:
            self._arrived -= 1
            deliver, receiver = self._travelling.popleft()
            receiver.run(deliver)

    def lose(self) -> None:
        self._epoch += 1
        self._arrived = 0
        self._travelling.clear()
