"""The official clients of a broker: who is connected, what each is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_

from ...proto.rpc import MethodTable
from ...store.config import StoreConfig
from ..config import BrokerConfig
from ..groups import Groups
from ..timers import Timers
from ..transactions.listeners import Listeners
from .endpoints import Reach
from .heartbeats import Heartbeats
from .sessions import Sessions
from .settings import SettingsRules
from .subscriptions import Subscriptions
from .telemetry import Telemetry
from .transaction_checks import CheckCommands


class Clients:
    """Streams and heartbeats of all clients. TIMERS turn by the machine's time; OWN: the broker's address.

    LISTENERS get the producers among them, who are asked about transactions.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store_config: StoreConfig,
        groups: Groups,
        timers: Timers,
        own: Callable[[], str],
        listeners: Listeners,
    ) -> None:
        #: Where they are told to connect to.
        self.reach = Reach(config.v2_endpoints, own)
        self.sessions = Sessions(timers, limit=config.clients_max)
        rules = SettingsRules(
            groups, store_config.delay_levels_ms, checks_types=config.topic_message_type_check
        )
        self.subscriptions = Subscriptions(groups, self.sessions, timers)
        self.telemetry = Telemetry(
            self.sessions,
            self.subscriptions,
            rules,
            self.reach,
            timers,
            measured=config.client_metrics,
        )
        self._heartbeats = Heartbeats(self.sessions)
        self.checks = CheckCommands(self.sessions, listeners, limit=config.transactions_open_max)

    def start(self) -> None:
        """Begin to look for clients that are gone."""
        self.sessions.start()
        self.subscriptions.start()

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        faces = (self.telemetry, self._heartbeats)
        return reduce(or_, (face.methods() for face in faces))
