"""Recovery without a reaper: what the workers of a group do for it by themselves.

`autoclaim` is one more source of deliveries for the loop: a walk over the pending entries list, a page between two
reads. `upkeep` looks after quarantined jobs, schedules and the house whenever the group is the workers' to look after,
with the agreement as its authority.

What holds here. The server's idle time is the only judge, so any number of workers may look at the same delivery, and
one gets it. Nothing is done while a live reaper serves the group. After a gap in the heartbeats recovery waits, so that
live workers come first. A walk keeps its cursor: what lives in front hides nothing that is dead
behind.

Where the group gives back in place, the walk claims nothing: it makes ready what it has judged, and reads with CLAIM
bring it.

Not promised: a job's own visibility timeout (`reaper.visibility_ms`), since the list shows no fields.
"""
