"""Parts that workers and reapers share: settings, options, logs, callbacks, notices, clocks and health.

Rules:

- Settings are read once, at the edge. A wrong setting is a sentence that names it.
- Durations are `timedelta` in settings. Elsewhere the end of a name gives the unit: ``_s`` or ``_ms``.
- A callback or a probe that hangs stops only callbacks or probes.
- No module here depends on streams, jobs or leases.
"""
