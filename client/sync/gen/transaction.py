"""`Transaction`, generated from client/producing/transaction.py by `make sync`. Edit that file."""

from __future__ import annotations

from ...producing.receipt import Receipt
from ...producing.transaction import AsyncTransaction, Resolution, Verdict
from ..thread_block import ThreadBlock


class Transaction(ThreadBlock[AsyncTransaction]):
    """One transaction, for ordinary threads: `with producer.transaction(message) as transaction`."""

    @property
    def receipt(self) -> Receipt:
        """The receipt of the half message. Its message_id is the id of the transaction."""
        return self._core.receipt

    @property
    def commit_receipt(self) -> Receipt | None:
        """The receipt of the message after the commit; None: it is not committed."""
        return self._core.commit_receipt

    @property
    def resolution(self) -> Resolution | None:
        """The decision; None: not decided yet."""
        return self._core.resolution

    def commit(self) -> Receipt:
        """Commit: consumers get the message. Return its receipt.

        Raises:
            TransactionResolved: You have called rollback already, or the broker has given up the transaction.
            SendFailed: The broker was not reached within delivery_timeout_ms. It asks the checker later.
        """
        return self._run(self._core.commit())

    def rollback(self) -> None:
        """Roll back: no consumer gets the message. Raises the errors of `commit`."""
        return self._run(self._core.rollback())

    def leave_open(self) -> None:
        """Neither commit nor roll back: the broker asks a checker of the group later."""
        return self._core.leave_open()

    def decide(self, verdict: Verdict) -> None:
        """Commit, roll back, or leave the transaction open, as VERDICT says."""
        return self._run(self._core.decide(verdict))
