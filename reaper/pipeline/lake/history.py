"""Refuses a lake whose tables and checkpoint are not of one moment: batches have numbers, and nothing else tells them.

The checkpoint says which entries a batch holds, and the tables which batches they have. So with a checkpoint of before
(or none) a number comes again for other entries, which the tables would take for the ones they have; and tables of
before lack what the checkpoint takes for ingested.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

from reaper.pipeline.lake.delta import LakeTable, is_address
from reaper.pipeline.lake.layout import TABLES, Layout
from reaper.pipeline.lake.tables import check_generation
from workers.protocol.errors import ConfigurationError

logger = logging.getLogger(__name__)


class LakeAwayError(OSError):
    """A lake that is being filled is not there: somebody moved or removed it, or its file system is away."""


def check_presence(layout: Layout, name: str = "") -> None:
    """Look whether a lake that was there a moment ago still is: Spark would begin another one in its place.

    ``name`` is what its state called itself. Raises LakeAwayError where there is nothing of it, ConfigurationError
    where there is another, OSError where nobody can tell.
    """
    if layout.has_name():
        if name and layout.name() != name:
            raise ConfigurationError(f"the lake {layout.root} was removed and made anew while it was being filled.")
        return
    where = layout.state if is_address(layout.root) else Path(layout.root)
    tables = [] if is_address(layout.root) else [Path(layout.table(table)) for table in TABLES]
    if not any(table.exists() for table in tables) and not layout.checkpoint.exists():
        raise LakeAwayError(
            f"{where} is not there any more, or empty: put the lake back (mount its file system), or stop this and "
            "start it again, which begins another lake"
        )


def check_history(layout: Layout, *, fail_on_data_loss: bool = True) -> None:
    """Compare what checkpoint and tables say of batches.

    Raises ConfigurationError where going on would lose or repeat entries. Where it is the tables that lack something,
    that is logged instead with ``fail_on_data_loss`` off.
    """
    check_generation(layout)
    addresses = {name: layout.table(name) for name in TABLES}
    tables = {name: LakeTable(address) for name, address in addresses.items() if LakeTable.is_at(address)}
    if tables:
        layout.create()  # a state that is new has a name that no table knows
    held = {name: table.batch_of(layout.name()) for name, table in tables.items()}
    newest = max((batch for batch in held.values() if batch is not None), default=None)
    planned = layout.planned_batch()
    if (newest is None or planned is None) and (newest is not None or any(table.files() for table in tables.values())):
        raise ConfigurationError(
            f"the lake {layout.root} was filled before, but its checkpoint ({layout.checkpoint}) is gone, so nobody "
            "knows what was ingested: restore it, or begin a new lake."
        )
    if newest is not None and planned is not None and planned < newest:
        raise ConfigurationError(
            f"the lake {layout.root} has batch {newest}, and its checkpoint ({layout.checkpoint}) knows none after "
            f"batch {planned}: one of them is of an earlier moment, and what comes next would be taken for what is "
            "there. Restore both as they were at one moment, or begin a new lake."
        )
    for lack in _lacks(layout, held):
        if fail_on_data_loss:
            raise ConfigurationError(
                f"{lack} Restore both as they were at one moment, or begin a new lake; --no-fail-on-data-loss goes on "
                "with what is there."
            )
        logger.warning("data loss, and fail_on_data_loss is off: %s", lack)


def _lacks(layout: Layout, held: Mapping[str, int | None]) -> Iterator[str]:
    """Say of each table which batch it lacks, as far back as batches are counted."""
    known = [counts for batch in layout.counted_batches() if (counts := layout.read_counts(batch))]
    for name in TABLES:
        batch = max((counts.batch for counts in known if getattr(counts, name)), default=None)
        ends = held.get(name)
        if batch is not None and (ends is None or ends < batch):
            yield (
                f"table {name} of the lake {layout.root} lacks batch {batch}, which its checkpoint "
                f"({layout.checkpoint}) takes for ingested: it {'has none' if ends is None else f'ends with {ends}'}."
            )
