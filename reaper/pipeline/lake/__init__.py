"""The lake: its tables, and how lifecycle events and dead letters get there, each exactly once.

Delta tables by day (`delta`) with explicit schemas (`schema`), in a folder or in an object store (`store`, `layout`).
Spark's tasks (`source`) read entries, parse them (`parse`) and write files (`files`). A batch (`batches`) is published
by commits that name it, so that a query that is started again (`ingest`, `supervisor`) repeats nothing. `maintenance`
joins small files and drops old days, `trim` trims journals behind the lake, `reading` and `tables` read it.

Invariants: columns are only ever added. One process at a time writes, under the lock of the state; readers need none.
Modules that Spark runs elsewhere need PySpark, redis-py, pyarrow and deltalake there.
"""
