"""The term of a holder. It keeps a timer for each delivery of a group, and recovers stalled ones.

`group_watch` serves a group for one term. It extends the lease, and watches the stream and the retry stream, which are
the sources of the group. `scanner` reads a source into `timers`. When a timer is due, `source_watch` calls the script
that recovers. `notes` reports all results.

The pending entries list is the truth. A replica may lose its own knowledge, and learns it again from the list. A timer
is a hint, and the script decides. Timers are armed again before a call is sent, so a lost reply loses none. A write
that has begun may finish, so that its result is known. The first fenced write ends the term. Errors of Redis do not
end it.

A delivery is recovered after its visibility timeout, never before, and late while no replica
holds the lease.
"""
