"""The lake: its tables, and how lifecycle events and dead letters get there, each once.

Parquet in folders by day (`layout`), with explicit schemas (`schema`). A batch is written aside, and published by a
rename that happens once (`batches`), so that a query that is started again (`ingest`) repeats nothing. `maintenance`
joins what is small and drops what is old; `trim` gives journals back what is safely here.

What holds here. Columns are only ever added. One writer and one maintainer at a time hold locks; readers need none.
Modules that Spark runs elsewhere need PySpark and nothing else of ours.
"""
