"""The data pipeline on Spark. It copies journals into a lake of Delta tables, and answers questions about them.

Needs the extra ``spark`` (and a Java, or the extra ``jre``). `reaper.cli.main` knows its commands by name, and imports
them at their first use. A package imports only packages before it in this list: `spark`, `redis_stream`, `lake`,
`analysis`, `advice`, `report`, `compare`, `cli`.
"""
