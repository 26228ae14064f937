"""Lakes that were made up: to rehearse on for the class cache, for benchmarks, and for tests.

`stories` says what may befall a job, `synthetic` lets it befall millions, the same for the same seed however the work
is divided. Nothing that looks at real data imports this.
"""
