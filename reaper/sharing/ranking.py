"""Orders the replicas for each group. Pure.

Each replica has a score for each group (rendezvous hashing). So all replicas find the same order without a vote, and
only the groups of a replica that comes or goes move.
"""

from collections.abc import Iterable
from hashlib import blake2b


def ranked(replicas: Iterable[str], group: str) -> list[str]:
    """Return the IDs of ``replicas`` in the order in which they should serve ``group``."""
    return sorted(replicas, key=lambda replica: blake2b(f"{replica} {group}".encode(), digest_size=8).digest())
