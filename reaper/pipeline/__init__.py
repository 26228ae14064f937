"""The data pipeline on Spark: from the journal to a lake of Parquet files, and from there to answers.

Needs the extra ``spark`` (and a Java, or the extra ``jre``). The service never imports it; `reaper.cli.main` loads its
commands only when one is used.
"""
