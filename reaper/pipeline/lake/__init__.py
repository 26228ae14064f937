"""The lake: its tables, and how lifecycle events and dead letters get there, each once.

`schema`, `layout`, `events` and `batches` travel to where Spark runs, and need nothing but PySpark there; `tables`
opens a lake, `ingest` fills it, `maintenance` keeps it small, and `trim` frees Redis of what is safely in it.
"""
