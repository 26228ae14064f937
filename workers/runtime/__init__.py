"""What every process of ours needs, worker or reaper, and neither's business alone.

Settings and their flags, logs, callbacks to the program, notices, clocks and pauses, health over HTTP, and what systemd
is told.

What holds here. Settings are read once, at the edge, and a wrong one is a sentence that names it. Durations are
`timedelta` in settings, and seconds or milliseconds by a name's ending everywhere else. A callback or a probe that
hangs holds up nothing but callbacks and probes.

Nothing here knows a stream, a job or a lease.
"""
