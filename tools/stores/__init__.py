"""Stores read cold, by every tool and by Spark, in one of two ways.

`cold_store` opens a store as a broker would have it after its recovery (store/opened_store.py); `scan/` reads the rows
of its files as they lie. `locations` says where stores are, `schemas` what columns their rows have.
"""

from __future__ import annotations

from typing import Final, Literal

#: Recoveries by which a store can be read: that of Apache RocketMQ 5.5.0, or that of PocketMQ.
RecoveryName = Literal["apache", "pocketmq"]
RECOVERIES: Final[tuple[RecoveryName, ...]] = ("apache", "pocketmq")
