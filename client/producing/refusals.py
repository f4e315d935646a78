"""What an error says of a run: whether it may have been stored, and what is to be done with it.

    error                                     stored?      then
    nothing left (Unreachable), no route      no           wait, ask for the route, send again, also elsewhere
    Overloaded StoreFull ShuttingDown …       no           the same
    TopicNotFound QueueNotFound NotWritable   no           once: ask for the route, send again, also elsewhere
    no answer (RequestTimeout Disconnected)   perhaps      wait, send again to the same queue
    FlushTimeout                              yes          the same: the broker answers once the device has it
    MessageTooLarge, of several messages      no           cut it in two, send both in order
    InvalidArgument, of several senders       no           cut it between them, so that only the culprit hears of it
    ProducerUnknown SequenceBroken            (as before)  begin a new epoch, send again
    ProducerFenced, in the newest epoch       no           the producer is at its end
    any other                                 (see below)  the senders get the error

"Perhaps" holds on: what one try may have stored, a later refusal does not undo, unless it is for what the run is: then
every try was refused, heard or not (but not for its size or its time: limits and clocks change). Of other errors,
DiskFailure and those without a class of their own leave it open whether the run was stored; and a run that the broker
stores in parts, because some of its messages wait, may have been stored in part by any error of the store. Pure.
"""

from __future__ import annotations

import enum

from ...proto.errors import (
    ClientClosed,
    Disconnected,
    DiskFailure,
    FlushTimeout,
    InvalidArgument,
    InvalidDelay,
    MessageTooLarge,
    NotWritable,
    PocketMQError,
    ProducerFenced,
    ProducerUnknown,
    QueueNotFound,
    RequestTimeout,
    SequenceBroken,
    StoreError,
    TopicNotFound,
    Unreachable,
)
from .run import Run

_STALE_ROUTE = (TopicNotFound, QueueNotFound, NotWritable)
_OPEN = (RequestTimeout, Disconnected, FlushTimeout, DiskFailure, ClientClosed)


class Remedy(enum.Enum):
    """What is done with a run that was not acknowledged."""

    #: Send it again after a pause, elsewhere if it may be.
    RETRY = "retry"
    #: Send it again at once, by a new route.
    REROUTE = "reroute"
    #: Cut it in two.
    SPLIT = "split"
    #: Begin a new epoch in its queue, and send it again.
    RENUMBER = "renumber"
    #: Give it up.
    FAIL = "fail"
    #: Give everything up.
    END = "end"


def may_have_stored(run: Run, error: PocketMQError) -> bool:
    """Tell whether the try of RUN that ended in ERROR may have stored it."""
    if isinstance(error, Unreachable):
        return False
    if isinstance(error, _OPEN) or type(error) is PocketMQError:
        return True
    return run.scattered and isinstance(error, StoreError)


def was_never_stored(error: PocketMQError) -> bool:
    """Tell whether ERROR says that no try of the same run can have been stored."""
    if isinstance(error, MessageTooLarge | InvalidDelay):
        return False
    return isinstance(error, InvalidArgument)


def split_point(run: Run, error: PocketMQError) -> int:
    """Return before which message RUN is to be cut because of ERROR; 0: it is not."""
    if isinstance(error, MessageTooLarge):
        return run.middle(within_a_sender=True)
    if isinstance(error, InvalidArgument):
        return run.middle(within_a_sender=False)
    return 0


def remedy_for(run: Run, error: PocketMQError, latest_epoch: int) -> Remedy:
    """Return what is to be done about ERROR, which ended a try of RUN. LATEST_EPOCH: of any queue of the producer."""
    if split_point(run, error):
        return Remedy.SPLIT
    if run.numbers is not None:
        if isinstance(error, ProducerUnknown | SequenceBroken):
            return Remedy.RENUMBER
        if isinstance(error, ProducerFenced):
            # A newer epoch of our own in another queue, or somebody else with our id?
            own = run.numbers.epoch < latest_epoch
            return Remedy.RENUMBER if own else Remedy.END
    if error.retriable:
        return Remedy.RETRY
    if isinstance(error, _STALE_ROUTE) and run.attempts <= 1:
        return Remedy.REROUTE
    return Remedy.FAIL
