"""`Transaction`, generated from client/producing/transaction.py by `make sync`. Edit that file."""

from __future__ import annotations

from ...producing.receipt import Receipt
from ...producing.transaction import AsyncTransaction, Resolution, Verdict
from ..thread_block import ThreadBlock


class Transaction(ThreadBlock[AsyncTransaction]):
    """One transaction, for ordinary threads: `with producer.transaction(message) as transaction`."""

    @property
    def receipt(self) -> Receipt:
        """Where the half message lies; its message_id is the transaction's id."""
        return self._core.receipt

    @property
    def commit_receipt(self) -> Receipt | None:
        """Where the message lies that was committed; None: it was not."""
        return self._core.commit_receipt

    @property
    def resolution(self) -> Resolution | None:
        """What was decided; None: nothing yet."""
        return self._core.resolution

    def commit(self) -> Receipt:
        """Make the message visible; return where it lies.

        Raises what the broker refuses it with (TransactionResolved: it was given up), SendFailed if the broker was not
        reached within delivery_timeout_ms: then it asks for the outcome, and the checker answers.
        """
        return self._run(self._core.commit())

    def rollback(self) -> None:
        """Take the message back. Raises as `commit` does."""
        return self._run(self._core.rollback())

    def leave_open(self) -> None:
        """Decide nothing now: the broker asks the group's checkers for the outcome."""
        return self._core.leave_open()

    def decide(self, verdict: Verdict) -> None:
        """Do as VERDICT says."""
        return self._run(self._core.decide(verdict))
