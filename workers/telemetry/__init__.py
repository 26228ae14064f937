"""Traces and metrics, with their names, the spans of deliveries, instruments, and exporters.

`names` and `instruments` define every name, and a test compares them with ``docs/telemetry.md``.

Rules:

- Only ``opentelemetry-api`` is required. Without an SDK, a job costs the check of a flag.
- Job IDs are attributes of spans, never labels of metrics.
- Telemetry never stops or delays a job.

A process that is killed loses the spans that it has not exported. The span `recover` then contains the worker that had
the delivery, and the end of its time.
"""
