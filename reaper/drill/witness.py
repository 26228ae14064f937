"""Reads the lines of the jobs, the journals, and the state of Redis during an act. It only reads."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from reaper.drill import queries
from reaper.drill.queries import View
from reaper.drill.records import Line, Step, read_lines
from reaper.drill.stage import Stage
from workers.protocol.events import LifecycleEvent, decode_entry

_BEGINNING, _PAGE = b"0-0", 1_000


@dataclass(slots=True)
class Witness:
    """Collects lines, events and the latest view of one act."""

    stage: Stage
    lines: list[Line] = field(default_factory=list)
    events: list[LifecycleEvent] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Events by name."""
    view: View = field(default_factory=View)
    _read: dict[Path, int] = field(default_factory=dict)
    _steps: Counter[tuple[int, Step]] = field(default_factory=Counter)
    """Lines by process ID and step."""
    _journals: dict[str, bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._journals = {self.stage.namespace.journal: _BEGINNING, self.stage.keys.journal: _BEGINNING}

    async def run(self) -> None:
        """Read again and again until cancelled. Raises redis-py's errors."""
        while True:
            await self.look()
            await anyio.sleep(self.stage.settings.look_s)

    async def look(self) -> View:
        """Read all new lines and events, and return the state of Redis."""
        self._read_ledgers()
        await self.read_journals()
        self.view = await queries.look(self.stage, self.view)
        return self.view

    def in_hand(self, pid: int) -> int:
        """Return how many jobs a bare loop ran when it was looked at last.

        It continues them even if another worker has settled them, and Redis does not show that. (Other workers cancel
        a job that is theirs no more, and write no line then.)
        """
        return self._steps[pid, Step.START] - self._steps[pid, Step.DONE]

    def _read_ledgers(self) -> None:
        for file in sorted(self.stage.folder.glob("w*.out")):
            for line in read_lines(self._new_text(file)):
                self.lines.append(line)
                self._steps[line.pid, line.step] += 1

    def _new_text(self, file: Path) -> str:
        """Return the whole lines that are new. A line that kill -9 has cut short stays unread."""
        start = self._read.get(file, 0)
        with file.open("rb") as ledger:
            ledger.seek(start)
            new = ledger.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read[file] = start + len(whole)
        return whole.decode("ascii")

    async def read_journals(self) -> None:
        """Read the events that are new. Raises redis-py's errors."""
        for journal in self._journals:
            while entries := await self._read_on(journal):
                self._journals[journal] = entries[-1][0]
                for entry_id, flat in entries:
                    told = decode_entry(entry_id, flat)
                    self.events += told
                    self.counts.update(event.event for event in told)

    async def _read_on(self, journal: str) -> Any:
        client = self.stage.namespace_client if journal == self.stage.namespace.journal else self.stage.client
        return await client.execute_command("XRANGE", journal, b"(" + self._journals[journal], "+", "COUNT", _PAGE)
