"""Rejects a lake whose tables and checkpoint are not of one moment.

The checkpoint has the entries of each batch, and the tables have the numbers of their batches. With an older checkpoint
(or none) a number comes again for other entries, and the tables would take them for the ones they have. Older tables
lack entries that the checkpoint takes for ingested.
"""

import logging

from reaper.pipeline.lake.delta import LakeTable
from reaper.pipeline.lake.layout import TABLES, Layout
from workers.protocol.errors import ConfigurationError
from workers.protocol.log_fields import fields

logger = logging.getLogger(__name__)
_RESTORE = "Restore both from one backup, or begin a new lake"


def check_history(layout: Layout, *, fail_on_data_loss: bool = True) -> None:
    """Compare the batches of checkpoint and tables.

    Raises ConfigurationError if ingestion would lose or repeat entries. If the tables lack entries and
    ``fail_on_data_loss`` is off, it logs that instead.
    """
    tables = {name: LakeTable(layout.table(name)) for name in TABLES if LakeTable.is_at(layout.table(name))}
    if tables:
        layout.create()  # a new state has a new name, which is in no table
    held = {name: table.batch_of(layout.name()) for name, table in tables.items()}
    newest = max((batch for batch in held.values() if batch is not None), default=None)
    planned, committed = layout.planned_batch(), layout.committed_batch()
    if (newest is None or planned is None) and (newest is not None or any(table.files() for table in tables.values())):
        raise ConfigurationError(
            f"the lake {layout.root} has batches, but its checkpoint ({layout.checkpoint}) is missing, so the "
            "ingested entries are unknown. Restore it, or begin a new lake."
        )
    if newest is not None and planned is not None and planned < newest:
        raise ConfigurationError(
            f"the lake {layout.root} has batch {newest}, but its checkpoint ({layout.checkpoint}) ends with batch "
            f"{planned}: they are from different backups. {_RESTORE}."
        )
    for name in TABLES:
        ends = held.get(name)
        if committed is not None and (ends is None or ends < committed):
            lack = (
                f"table {name} of the lake {layout.root} ends with batch {'none' if ends is None else ends}, and its "
                f"checkpoint ({layout.checkpoint}) takes batch {committed} for ingested"
            )
            if fail_on_data_loss:
                raise ConfigurationError(
                    f"{lack}. {_RESTORE}. --no-fail-on-data-loss continues with the entries that exist."
                )
            logger.warning("data loss, and fail_on_data_loss is off: %s", fields(cause=lack))
