"""Which ranges a batch reads: fixed once, when it is planned, so that a live broker does not change a running query."""

from __future__ import annotations

from .cluster import Cluster
from .loss import Losses
from .ranges import QueueRange, cut, ranges_between
from .read_options import ReadOptions
from .starts import resolved, settled, within


def batch_ranges(options: ReadOptions, cluster: Cluster) -> list[QueueRange]:
    """Return what the batch of OPTIONS reads, cut for its tasks."""
    bounds = cluster.bounds(options.choice, strict=True)
    losses = Losses(options.fail_on_data_loss)
    begins = within(
        settled(resolved(options.starting, bounds, cluster, options.group), bounds),
        bounds,
        losses,
        options.starting.option,
    )
    ends = within(
        settled(resolved(options.ending, bounds, cluster, options.group), bounds),
        bounds,
        losses,
        options.ending.option,
    )
    for queue in sorted(ends):
        if ends[queue] < begins[queue]:
            losses.report(f"{queue} ends at {ends[queue]}, before it begins at {begins[queue]}")
    return cut(
        ranges_between(begins, ends),
        at_least=options.partitions_min,
        records_max=options.records_max,
    )
