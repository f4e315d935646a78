"""Ports that nobody has: for servers that need several in a row."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from random import SystemRandom

#: How many ports around one are free as well, on either side.
APART = 2


def free_port() -> int:
    """Return a port that is free, as are the APART below and behind."""
    random = SystemRandom()
    while True:
        port = random.randrange(11_000, 32_000)  # Below those that connections take.
        with ExitStack() as stack:
            try:
                for number in range(port - APART, port + APART + 1):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
            return port


def free_ports(count: int) -> list[int]:
    """Return COUNT ports, each with free ones around it."""
    found: list[int] = []
    while len(found) < count:
        port = free_port()
        if all(abs(port - other) > 2 * APART for other in found):
            found.append(port)
    return found
