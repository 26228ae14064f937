"""Traces and metrics: their names, the spans of deliveries, instruments, and how they are exported.

`names` and `instruments` spell everything that is shown; a test compares them with ``docs/telemetry.md``. A delivery
of a traced job has a span ID that everybody can work out (`deliveries`), so whoever recovers it can tell of it in
place of a worker that cannot any more.

What holds here. Only ``opentelemetry-api`` is needed; where nobody listens, a job costs a look at a flag. Job IDs are
attributes of spans, never labels of metrics. Nothing here may stop or delay a job.

Not promised: that every span arrives. What a killed process had not exported is told by whoever recovers, or not at
all.
"""
