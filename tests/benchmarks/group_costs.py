"""Computes the costs of many idle groups by the formulas of docs/scaling.md.

The constants were fitted to the measurements on that page. `test_group_costs` compares both with the page.
"""

from dataclasses import dataclass

EACH_PROCESS = 0.001
"""Part of a core that a replica and a server use without any group."""
SERVER_US, SERVER_PIPELINE_US = 17, 65
"""Time of a server for a request, and for a pipeline of them."""
REPLICA_US, REPLICA_PIPELINE_US = 31, 100
MOST_TOGETHER = 100
STAGES = 3
"""Pipelines of a slot: ticks, and the two requests of the full scans that they begin."""


@dataclass(frozen=True)
class Deployment:
    """Groups, and the replicas and masters that serve them, with default settings."""

    groups: int
    replicas: int
    masters: int = 1
    ttl_s: float = 7.5
    full_scan_s: float = 30

    @property
    def requests_s(self) -> float:
        """Requests in a second, of all replicas."""
        each = 1 / (0.95 * self.ttl_s / 3) + 1 / (2.25 * self.ttl_s) + 2.2 / self.full_scan_s
        return self.groups * each + self.replicas

    @property
    def slot_s(self) -> float:
        """Ticks that fall due within so many seconds share pipelines."""
        return self.ttl_s / 30

    @property
    def batch(self) -> float:
        """Requests of a pipeline."""
        return min(MOST_TOGETHER, max(1, self.requests_s * self.slot_s / (STAGES * self.replicas * self.masters)))

    @property
    def core_of_master(self) -> float:
        """Part of a core that each master uses."""
        us = SERVER_US + SERVER_PIPELINE_US / self.batch
        return EACH_PROCESS + self.requests_s * us / 1e6 / self.masters

    @property
    def core_of_replica(self) -> float:
        """Part of a core that each replica uses."""
        us = REPLICA_US + REPLICA_PIPELINE_US / self.batch
        return EACH_PROCESS + self.requests_s * us / 1e6 / self.replicas

    @property
    def memory_mb(self) -> float:
        """Memory of each replica."""
        return 58 + self.groups * (6 + 5.4 / self.replicas) / 1000


LARGE = Deployment(groups=100_000, replicas=8, masters=30)
"""The deployment that the page gives as an example."""


if __name__ == "__main__":
    for one in (Deployment(1, 3), Deployment(1_000, 3), Deployment(10_000, 3), LARGE):
        print(
            f"{one.groups:,} groups, {one.replicas} replicas, {one.masters} masters: {one.requests_s:,.0f} requests/s, "
            f"{one.batch:.0f} in a pipeline; {one.core_of_master:.1%} of a core for each master, "
            f"{one.core_of_replica:.1%} for each replica; {one.memory_mb:.0f} MB"
        )
