"""How replicas share the groups: each group has a lease, and the holder of the lease serves the group.

`registry` says which replicas are alive. `ranking` says, without any vote, which of them should serve a group.
`tenure` takes the lease of one group, has the group served, and hands the lease over when another replica should serve
the group. `tenures` has one for each group.

What holds here. Only the lease decides: each script that writes compares it, so a replica that is paused, or wrong
about the others, writes nothing. The registry and the ranking decide only who tries first. A lease that nobody renews
expires.
"""
