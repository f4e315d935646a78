"""Options of the commands that ask ZooKeeper about replica sets."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from ..options import with_options

ZOOKEEPER_VARIABLE: Final = "POCKETMQ_ZOOKEEPER"


#: ZooKeeper, the cluster of a set, and the certificates of its replicas.
registry_options = with_options(
    click.option(
        "--zookeeper",
        metavar="HOST:PORT[,…]",
        envvar=ZOOKEEPER_VARIABLE,
        default="127.0.0.1:2181",
        show_default=True,
        show_envvar=True,
        help="ZooKeeper servers of the replica sets.",
    ),
    click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Configuration file of a replica, whose certificate and ZooKeeper account are used.",
    ),
    click.option(
        "--cluster",
        "cluster_name",
        metavar="NAME",
        default="DefaultCluster",
        show_default=True,
        help="Cluster of the set: the setting broker.cluster of its brokers.",
    ),
)
