"""What a server says of itself in reply to ``HELLO``, and whether that is what the address means. Pure.

``HELLO`` without arguments needs no right, tells no time and changes nothing; servers and proxies that do not know it
are believed.
"""

from collections.abc import Sequence
from typing import Any

from workers.protocol.address import Topology

HELLO = "HELLO"

_SENTINEL = (
    "a Sentinel answers there, which knows no jobs: write redis+sentinel://host:port,host:port/master/db, "
    "with the name that the Sentinels know the master by"
)
_REPLICA = (
    "a replica answers there, where nothing can be written: name its master, "
    "or the Sentinels that watch it (redis+sentinel://…)"
)
_CLUSTER = (
    "a node of a cluster answers there, which has a part of the keys alone: "
    "the address of a cluster begins with redis+cluster://"
)
_NOT_CLUSTERED = "a server that is no node of a cluster answers there: its address begins with redis:// or rediss://"
_NO_OWNER = "the cluster's nodes name one that says it is a replica: they have not finished"
_DEMOTED = "the Sentinels name a master that says it is a replica: they have not finished"
_NO_NODE = "the Sentinels name a master that is a node of a cluster, or a Sentinel"


def objection_to_node(reply: Any, topology: Topology) -> str:
    """Say why a server that replied ``reply`` to HELLO is not the one to talk to; '' where it may be.

    ``reply`` is a flat list of names and values, in bytes.
    """
    if not isinstance(reply, Sequence):
        return ""
    told = dict(zip(reply[::2], reply[1::2], strict=False))
    mode, is_replica = told.get(b"mode"), told.get(b"role") in (b"replica", b"slave")
    if topology is Topology.SENTINEL:
        return _NO_NODE if mode in (b"sentinel", b"cluster") else _DEMOTED if is_replica else ""
    if mode == b"sentinel":
        return _SENTINEL
    if topology is Topology.CLUSTER:
        return _NOT_CLUSTERED if mode != b"cluster" else _NO_OWNER if is_replica else ""
    return _CLUSTER if mode == b"cluster" else _REPLICA if is_replica else ""


def may_pass(objection: str) -> bool:
    """Tell whether what `objection_to_node` said may be over soon: a replica is promoted, or Sentinels finish."""
    return objection in (_REPLICA, _DEMOTED, _NO_OWNER)


def is_unfinished(objection: str) -> bool:
    """Tell whether it says that those who named the node are about to name another one."""
    return objection in (_DEMOTED, _NO_OWNER)
