"""Benchmarks of this project. `make bench` measures, and writes docs/internals/benchmarks.md.

`__main__` runs one module after the other, each on a Redis of its own (`stage`): `overshoot`, `crash`, `scan`,
`recover_calls`, `mass`, `schedule`, `failover`, `throughput`, `latency`, `idle`. Reapers and workers are
real processes; what they are compared with is in `bare`.
`figures` is what a benchmark returns; `page` and `__main__` print it.
"""
