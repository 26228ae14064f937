"""Shares the groups among replicas. Each group has a lease, and the holder of the lease serves the group.

- `registry` knows the live replicas.
- `ranking` orders them for each group, without a vote.
- `tenure` takes the lease of one group, and hands it over when another replica comes first.
- `tenures` has one tenure for each group.
- `discovery` finds the groups of patterns.

Only the lease decides, because each script that writes compares it. A replica that was paused, or that has an old view
of the others, cannot write. The registry and the ranking only decide which replica tries first. A lease expires without
renewal.
"""
