"""The settings of a push consumer that is not started yet."""

from __future__ import annotations

from random import Random

from ...proto.clock import Clock
from ...proto.errors import ConfigError
from ...proto.topics import check_group
from ..connections import Connections
from ..once import remembers
from ..push_config import PushConfig
from ..session import Session
from ..subscriptions import Topics, subscriptions_of
from .listening import Listener, check_listener
from .pushing import Pushing


class PushPlan:
    """The group, subscriptions, listener and settings of a push consumer that is not started yet."""

    def __init__(
        self, group: str, wanted: Topics, listener: Listener | None, config: PushConfig
    ) -> None:
        self.group = check_group(group)
        self.subscriptions = subscriptions_of(wanted)
        self.config = config
        self.listener: Listener | None = None
        if listener is not None:
            self.take(listener)

    def take(self, listener: Listener) -> None:
        """Set LISTENER. Raises ConfigError if it cannot be called with one argument."""
        check_listener(listener)
        self.listener = listener

    def pushing(self, connections: Connections | None, clock: Clock, random: Random) -> Pushing:
        """Return a started core. Call it on the event loop of the core."""
        if self.listener is None:
            raise ConfigError(
                "the consumer has no listener: pass listener=…, or decorate a function with @consumer.listener",
                field="listener",
            )
        self._check_delivery(self.listener)
        session = Session(self.config, connections, clock, random)
        pushing = Pushing(self.group, self.subscriptions, self.listener, self.config, session)
        pushing.start()
        return pushing

    def _check_delivery(self, listener: Listener) -> None:
        if self.config.delivery == "effectively_once" and not remembers(listener):
            raise ConfigError(
                'delivery="effectively_once" needs a listener that detects duplicates: decorate it with a Deduplicator'
                ' (see docs/exactly-once.md), or set delivery="at_least_once"',
                field="delivery",
                value="effectively_once",
            )
