"""What a replica does for a group while it holds its lease: keep a timer for each delivery, and recover what stalls.

`group_watch` serves a group for one term: it extends the lease, scans, and watches the sources of the group. A source
is scanned into `timers`. When one is due, `source_watch` has the script recover. `notes` counts and tells.

What holds here. The pending entries list is the truth; what only this process knows is lost with it and does not
matter. A timer is a hint, and the script decides. Timers are armed again before anything is sent, so a lost reply
loses none. A write that was begun is let finish, so that its result is known; the first stale answer ends the term.
Errors of Redis never end it.

Not promised: the instant. A delivery is recovered after its visibility timeout, never before, and late while nobody
holds the lease.
"""
