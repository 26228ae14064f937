"""Embedded recovery: the workers of a group recover without a reaper.

`upkeep` does the work of a replica, if no reaper serves the group. `autoclaim` scans the pending entries
list, and claims overdue deliveries for the worker's free slots. It makes the others ready by the policy of the group.

The server's idle time decides, so any number of workers can scan the same delivery, and one gets it. Workers do not act
while a live reaper serves the group. After a gap in the heartbeats, recovery waits, so that live workers come first.
"""
