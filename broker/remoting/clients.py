"""What a broker knows of its classic clients: their groups, and which producers can be asked about transactions."""

from __future__ import annotations

from collections.abc import Callable

from ...store.message_store import MessageStore
from ..config import BrokerConfig
from ..timing.timers import Timers
from ..transactions.transactions import Transactions
from .members import Members
from .transactions import RemotingTransactions


class ClassicClients:
    """The clients of one broker. CHECK_GROUP raises GroupInUse for a group whose members use another protocol."""

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        timers: Timers,
        transactions: Transactions,
        check_group: Callable[[str], None],
    ) -> None:
        self.transactions = RemotingTransactions(store, transactions)
        self.members = Members(
            timers,
            limit=lambda: config.clients_max,
            check_group=check_group,
            changed=self.transactions.changed,
            gone=self.transactions.gone,
        )
