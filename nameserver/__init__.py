"""The name server: brokers register, clients ask where the queues of a topic are."""

from .config import NameServerConfig
from .nameserver import NameServer

__all__ = ["NameServer", "NameServerConfig"]
