"""The lake: its tables, and how lifecycle events and dead letters get there, each once.

Delta tables by day (`delta`), with explicit schemas (`schema`), in a folder or in an object store (`layout`,
`reading`). Spark reads entries and judges what they are (`events`); its tasks make rows of them and write them aside
(`rows`, `files`). A batch (`batches`) is published by a commit that names it, so that a query that is started
again (`ingest`) repeats nothing. `maintenance` joins what is small and drops what is old, by itself while ingestion
runs; `trim` gives journals back what is safely here. `migration` is for lakes of before.

What holds here. Columns are only ever added. One ingester at a time can commit, and of two that rewrite files the
later one fails; readers need no lock. Modules that Spark runs elsewhere need PySpark, deltalake and pyarrow there, and
nothing else of ours.
"""
