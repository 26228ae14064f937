"""The data pipeline on Spark: from the journal to a lake of Delta tables, and from there to answers.

Needs the extra ``spark`` (and a Java, or the extra ``jre``). Nobody imports it; `reaper.cli.main` knows its commands by
name, and loads them when one is used. Each room imports only those before it: `spark` and `redis_stream`, `lake`
(entries get there) and `analysis` (what they say), `advice`, `report`, `compare`, `cli`.
"""
