"""What this project costs: `python -m tests.benchmarks` (or `make bench`) measures, and writes docs/benchmarks.md.

`__main__` runs the benchmarks `overshoot`, `scan`, `recovery`, `failover`, `throughput` and `idle` one after the other,
each on a Redis of its own (`stage`). Reapers and workers are real processes; what they are compared with is in `bare`.
`figures` is what a benchmark returns; `page` and `__main__` print it.
"""
