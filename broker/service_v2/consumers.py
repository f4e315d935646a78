"""What consumers ask of a broker, put together."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import or_

from ...proto.rpc import MethodTable
from ...store.config import StoreConfig
from ..groups import Groups
from ..pop.pops import Pops
from ..topics import Topics
from .acknowledging import Acknowledging
from .lite import LiteSubscriptions
from .receiving import Receiving
from .subscriptions import Subscriptions


class Consumers:
    """Receives, and what becomes of deliveries.

    NOW_MS is the machine's time; INVISIBLE_MS_MIN the shortest that a receive may ask messages to stay away for.
    """

    def __init__(
        self,
        pops: Pops,
        topics: Topics,
        groups: Groups,
        subscriptions: Subscriptions,
        store_config: StoreConfig,
        now_ms: Callable[[], int],
        invisible_ms_min: int,
    ) -> None:
        self._receiving = Receiving(pops, subscriptions, now_ms, invisible_ms_min)
        delays_ms = store_config.delay_levels_ms
        self._acknowledging = Acknowledging(pops, topics, groups, delays_ms)
        self._lite = LiteSubscriptions(topics)

    def methods(self) -> MethodTable:
        """Return the table of methods for a carrier."""
        faces = (self._receiving, self._acknowledging, self._lite)
        return reduce(or_, (face.methods() for face in faces))
