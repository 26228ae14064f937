"""What a client may do with a connection to the health server: ask in time, read the answer. Needs the extra ``web``.

Uvicorn itself waits for ever for the first request of a connection. A few dozen silent connections then stand in the
way of the probes, and a process that is well is restarted.
"""

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from workers.forks import keep_from_children


class PatientProtocol(H11Protocol):
    """Closes a connection whose client keeps us waiting. What we work on for a client has no such limit."""

    patience_s: float
    most: int
    waits_until: float | None = None
    """Until when the client may keep us waiting, by the loop's clock; None while it waits for us."""
    _giving_up: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request; close another connection where there are too many."""
        super().connection_made(transport)
        keep_from_children(transport)
        self._wait()
        if len(self.connections) > self.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Wait no more once the request is complete: a part of it buys no time."""
        super().data_received(data)
        if self._is_at_work():
            self._wait_no_more()

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it is there already."""
        self._wait()
        super().on_response_complete()
        if self._is_at_work():
            self._wait_no_more()

    def pause_writing(self) -> None:
        """Wait for the client to read."""
        super().pause_writing()
        self._wait()

    def resume_writing(self) -> None:
        """Go on: it has read."""
        super().resume_writing()
        if self._is_at_work():
            self._wait_no_more()

    def _is_at_work(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        return cycle is not None and not cycle.response_complete and not cycle.more_body

    def _wait(self) -> None:
        self._wait_no_more()
        self._giving_up = self.loop.call_later(self.patience_s, self.transport.abort)
        self.waits_until = self._giving_up.when()

    def _wait_no_more(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
        self._giving_up = self.waits_until = None

    def _make_room(self) -> None:
        """Close the connection that has kept us waiting for longest; an idle one at worst, this one."""
        others = cast("list[PatientProtocol]", list(self.connections))
        waiting = [(each.waits_until, each) for each in others if each.waits_until is not None]
        if waiting:
            min(waiting, key=lambda one: one[0])[1].transport.abort()


def patient_protocol(patience_s: float, most: int) -> type[PatientProtocol]:
    """Return the protocol for up to ``most`` open connections, whose clients may keep us waiting for so long."""
    return type("PatientProtocol", (PatientProtocol,), {"patience_s": patience_s, "most": most})
