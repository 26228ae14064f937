"""What the leader tells of its recoveries as spans: each lost delivery in its worker's place, and its `recover`."""

from collections.abc import Sequence
from time import time_ns

from reaper.recovery import Outcome, Recovered
from reaper.settings import WatchedGroup
from workers.protocol import telemetry
from workers.protocol.messages import RecoveryMode, text
from workers.protocol.telemetry import Lost, TraceLinkage

_ENDED = frozenset({Outcome.REDELIVERED, Outcome.SUSPECTED, Outcome.DEAD_LETTERED})


class RecoveryTracing:
    """Tells of the recoveries of one group in one term; does nothing where nobody listens."""

    def __init__(self, group: WatchedGroup, token: int, linkage: TraceLinkage) -> None:
        self._group = group
        self._token = token
        self._linkage = linkage
        self._traces = telemetry.is_tracing()

    def tell(self, rows: Sequence[Recovered], began_ns: int) -> None:
        """Tell of what a recovery call that began at ``began_ns`` has ended."""
        if not self._traces:
            return
        ended_ns = time_ns()
        for row in rows:
            if row.traced and row.outcome in _ENDED:
                self._tell(row, row.traced, began_ns, ended_ns)

    def _tell(self, row: Recovered, traced: Sequence[bytes], began_ns: int, ended_ns: int) -> None:
        read = Lost.read(
            traced,
            stream=self._group.stream,
            group=self._group.group,
            job_id=row.job_id,
            linkage=self._linkage,
            entry_id=text(row.entry_id),
            attempt=row.delivery_count,
            consumer=text(row.consumer),
            idle_ms=row.idle_ms,
        )
        if read:
            telemetry.tell_recovery(
                *read,
                reason=telemetry.VISIBILITY_TIMEOUT,
                outcome=row.outcome.name.lower(),
                mode=RecoveryMode.REAPER,
                began_ns=began_ns,
                ended_ns=ended_ns,
                token=self._token,
            )
