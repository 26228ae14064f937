"""The tables of a lake, and the ingestion of lifecycle events and dead letters, each exactly once.

Delta tables by day (`delta`) have explicit schemas (`schema`), in a folder or in an object store (`store`, `layout`).
Spark's tasks (`source`) read entries, parse them (`parse`) and write files (`files`). Commits (`batches`) publish them
under the number of the batch, so a restarted query (`ingest`, `supervisor`) repeats no entry. `maintenance` joins small
files and drops old days. `trim` trims journals behind the lake. `reading` and `tables` read it.

Columns are never removed. One process at a time writes, under the lock of the state. Readers need no lock.
Modules that Spark runs elsewhere need PySpark, redis-py, pyarrow and deltalake there.
"""
