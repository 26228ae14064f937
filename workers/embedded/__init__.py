"""Embedded recovery: the workers of a group recover without a reaper.

`autoclaim` is a source of deliveries for the loop. It scans the pending entries list, one page between two reads.
`upkeep` releases quarantined jobs, makes due jobs ready, and does maintenance, if no reaper serves the group.

The server's idle time decides, so any number of workers can scan the same delivery, and one gets it. Workers do not act
while a live reaper serves the group. After a gap in the heartbeats, recovery waits, so that live workers come first. A
scan keeps its cursor, so live deliveries at the front never hide dead ones.

With policy ``in-place`` a scan claims no delivery. It makes overdue ones ready, and reads with CLAIM return them.

Not promised: a job's own visibility timeout (`reaper.visibility_ms`), because the list shows no fields.
"""
