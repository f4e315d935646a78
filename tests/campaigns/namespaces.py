"""Links that are a network: each replica in a network namespace of its own, and the kernel loses what is cut.

    check()                          root, and the command `ip`, or a sentence why not
    with hub(3) as links:            before any socket is made: this process moves to a namespace of its own, for good
        ReplicaSet(…, links=links)

    127.213.0.1    this process: clients, and what leads to the name server
    127.213.0.2    what leads to ZooKeeper, which listens on loopback here
    127.213.0.11 … the replicas, each in a namespace

Addresses are loopback's, which `route_localnet` lets go over wires, since replicas without certificates listen on no
others. Who is cut off is told a wrong hardware address of the other end: what it sends is lost without a word, as over
a cable that is out. That is done in the namespaces of replicas alone: between one of them and anything else only what
the replica says is lost, which is enough, since no connection goes on without an answer. `snap` cuts: a network breaks
no connections. `delay` does nothing: not every kernel can.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .links import CLIENTS, REGISTRY, Links

_NETWORK: Final = "127.213.0"
_ROOT: Final = Path(__file__).resolve().parents[2]
_CLONE_NEWNET: Final = 0x4000_0000
#: Nobody's.
_NOWHERE: Final = "02:00:00:00:00:00"


def check() -> str | None:
    """Return why there can be no namespaces here; None: there can."""
    if os.geteuid() != 0:
        return "namespaces need root: run this as root, or leave out --namespaces"
    if shutil.which("ip") is None:
        return (
            "namespaces need the command `ip`: install iproute2 (apt-get install iproute2), or leave out"
            " --namespaces"
        )
    return None


def enter(name: str) -> None:
    """Move this thread to namespace NAME; to be called while it is the only one."""
    with Path("/run/netns", name).open("rb") as space:
        _call("setns", space.fileno(), _CLONE_NEWNET)


def _call(name: str, *arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Namespaces(Links):
    """Links of replicas 1 to COUNT, each in a namespace."""

    def __init__(self, count: int) -> None:
        super().__init__({})
        self._hosts = {CLIENTS: f"{_NETWORK}.1", REGISTRY: f"{_NETWORK}.2"}
        self._spaces: dict[str, str] = {}
        for number in range(1, count + 1):
            name = f"replica-{number}"
            self._spaces[name] = f"pocketmq-{os.getpid()}-{number}"
            self._hosts[name] = f"{_NETWORK}.{10 + number}"
        self._cuts: set[tuple[str, str]] = set()

    # --- the network

    def build(self) -> None:
        """Make the bridge here, and a namespace for each replica."""
        _loopback()
        _ip("link", "add", "hub", "type", "bridge")
        for end in (CLIENTS, REGISTRY):
            _ip("address", "add", f"{self._hosts[end]}/24", "dev", "hub")
        _routed("hub")
        _ip("link", "set", "hub", "up")
        for number, (name, space) in enumerate(self._spaces.items(), 1):
            _ip("netns", "add", space)
            _ip("link", "add", f"port{number}", "type", "veth", "peer", "eth0", "netns", space)
            _ip("link", "set", f"port{number}", "master", "hub", "up")
            _inside(space, _loopback)
            _inside(space, lambda: _routed("eth0"))
            _ip("-n", space, "address", "add", f"{self._hosts[name]}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")

    def destroy(self) -> None:
        """Take the namespaces away; the bridge goes with this process."""
        for space in self._spaces.values():
            subprocess.run(["ip", "netns", "delete", space], capture_output=True, check=False)

    # --- as links

    def host_of(self, end: str) -> str:
        return self._hosts[end]

    def entering(self, end: str) -> str:
        space = self._spaces[end]
        found = f"import sys; sys.path.insert(0, {str(_ROOT)!r})"
        return f"{found}; from tests.campaigns.namespaces import enter; enter({space!r}); "

    async def reach(self, target: str, address: str, source: str = "") -> str:
        return address if target in self._spaces else await super().reach(target, address, source)

    def cut(self, one: str, others: Iterable[str], *, one_way: bool = False) -> None:
        for other in others:
            self._cut(one, other)
            if not one_way or one not in self._spaces:
                self._cut(other, one)

    def _cut(self, one: str, other: str) -> None:
        """Lose what ONE says to OTHER, if ONE is a replica."""
        if one in self._spaces and (one, other) not in self._cuts:
            self._cuts.add((one, other))
            words = ("lladdr", _NOWHERE, "nud", "permanent", "dev", "eth0")
            _ip("-n", self._spaces[one], "neigh", "replace", self._hosts[other], *words)

    def snap(self, one: str, others: Iterable[str]) -> None:
        self.cut(one, others)

    def delay(self, one: str, others: Iterable[str], delay_ms: int) -> None:
        pass

    def mend(self) -> None:
        for one, other in self._cuts:
            _ip("-n", self._spaces[one], "neigh", "del", self._hosts[other], "dev", "eth0")
        self._cuts.clear()


@contextmanager
def hub(count: int) -> Iterator[Namespaces]:
    """Move this process, which has no other thread, to a namespace with a bridge, and COUNT replicas to theirs."""
    _call("unshare", _CLONE_NEWNET)
    made = Namespaces(count)
    try:
        made.build()
        yield made
    finally:
        made.destroy()


def _loopback() -> None:
    """Have loopback be 127.0.0.1 alone, so that others of its addresses lie elsewhere."""
    _ip("link", "set", "lo", "up")
    _ip("address", "delete", "127.0.0.1/8", "dev", "lo")
    _ip("address", "add", "127.0.0.1/32", "dev", "lo")


def _routed(device: str) -> None:
    Path(f"/proc/sys/net/ipv4/conf/{device}/route_localnet").write_text("1")


def _inside(space: str, work: Callable[[], None]) -> None:
    """Do WORK in namespace SPACE, in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            enter(space)
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        raise OSError(f"namespace {space} cannot be made ready")
