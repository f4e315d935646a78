"""Names of properties that are no user's: refused when they are sent, left out when messages are delivered.

Source: v2-protocol.md §2.2, Apache's MessageConst. Apache refuses `RESERVED` alone, and so leaks some of the others to
consumers, or lets senders overwrite them.
"""

from __future__ import annotations

from typing import Final

from ...proto import properties as names

_RESERVED: Final = """
    KEYS TAGS WAIT DELAY RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
    ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME MSG_REGION TRACE_ON UNIQ_KEY
    EXTEND_UNIQ_INFO MAX_RECONSUME_TIMES CONSUME_START_TIME TRAN_PREPARED_QUEUE_OFFSET INSTANCE_ID CORRELATION_ID
    REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE POP_CK POP_CK_OFFSET 1ST_POP_TIME DUP_INFO
    INNER_MULTI_QUEUE_OFFSET TIMER_DELAY_MS TIMER_DELAY_SEC TIMER_DELIVER_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS
    TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP DLQ_ORIGIN_TOPIC
    DLQ_ORIGIN_MESSAGE_ID __CRC32#
"""

#: Apache's reserved names.
RESERVED: Final = frozenset(_RESERVED.split())

#: All that brokers and proxies keep in properties.
INTERNAL: Final = RESERVED | {
    names.SHARDING_KEY,
    names.LITE_TOPIC,
    names.PRIORITY,
    names.TRACE_CONTEXT,
    names.TRANSACTION_ID,
    names.TRANSACTION_CHECK_TIMES,
    names.CHECK_IMMUNITY_SECONDS,
    names.MULTI_DISPATCH,
    names.INNER_NUM,
    names.INNER_BASE,
    names.PRODUCER_SEQUENCE,
    names.DEAD_LETTER_REASON,
}
