"""The network between simulated processes and the server, with connections of redis-py over links that fail.

A link is a TCP connection as its two ends see it. Bytes arrive in order, late or never, and a living link loses none in
the middle. Bytes sent while a machine is cut off arrive when the contact is back, unless the link is reset first. So a
request may be executed long after its sender has given it up, as in life.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any, Protocol

from tests.simulation.loop import Process, SimulatedLoop

LATENCY_S = (100e-6, 1e-3)
SLOW_PART = 0.01
"""So many messages take longer…"""
SLOW_S = 0.1
"""… up to this."""
NOTICED_S = (0.01, 2.0)
"""How long it takes until one end notices that the other one is gone."""


class Session(Protocol):
    """The server's end of a link."""

    def feed(self, data: bytes) -> None:
        """Take what has arrived."""

    def close(self) -> None:
        """The link is gone."""


Accept = Callable[[Callable[[bytes], None], Callable[[], None]], Session]
"""Takes what sends a reply, and what closes the link from the server's side."""


@dataclass(slots=True)
class Weather:
    """How the network is for one process. Durations are seconds."""

    latency_s: tuple[float, float] = LATENCY_S
    held_requests: bool = False
    """What it sends waits until the contact is back."""
    held_replies: bool = False
    """The same for what it is sent."""
    losing_requests: float = 0.0
    """With this probability a message is lost, and its link with it: before the server has seen it…"""
    losing_replies: float = 0.0
    """… or after it has acted on it."""
    refused: bool = False
    """A firewall answers instead of the server."""
    links: "list[Link]" = field(default_factory=list)
    connecting: "list[asyncio.Future[None]]" = field(default_factory=list)
    """Who waits for a connection while nothing gets through."""

    def calm(self) -> None:
        """Let the network be as usual, except for held messages."""
        self.latency_s, self.losing_requests, self.losing_replies = LATENCY_S, 0.0, 0.0
        self.refused = False


class Network:
    """Makes links to the one server there is."""

    def __init__(self, loop: SimulatedLoop, random: Random, accept: Accept, server: Process) -> None:
        self._loop = loop
        self._random = random
        self._accept = accept
        self._server = server
        self._weathers: dict[str, Weather] = {}
        self.refusing = False
        """Connections are refused: there is no server."""
        self.links = 0
        """How many there were."""
        self.sends: Callable[[Link, bytes], None] | None = None
        """Called when a process sends something: before it is on its way."""
        self.watch: Callable[[Link, str, bytes], None] | None = None
        self.answered: Callable[[Link], None] | None = None
        """Called when the server answers: the process may hear of it late, or never."""
        """Is told of what arrives, and where: ``request`` or ``reply``."""

    def weather(self, role: str) -> Weather:
        """Return how the network is for a process, its threads and successors."""
        return self._weathers.setdefault(role, Weather())

    def weathers(self) -> list[Weather]:
        """Return the state of the network for all present processes."""
        return list(self._weathers.values())

    async def connect(self, protocol_factory: Any, host: str, port: int, process: Process | None) -> Any:  # noqa: ARG002
        """Connect. Raises ConnectionRefusedError. Waits for ever if the network is cut."""
        owner = process.parent or process if process else None
        weather = self.weather(owner.role if owner else "")
        await asyncio.sleep(self._latency(weather))
        while weather.held_requests or weather.held_replies or self._server.closed:
            waiting = self._loop.create_future()
            weather.connecting.append(waiting)
            await waiting
        if self.refusing or weather.refused:
            raise ConnectionRefusedError("simulated: nobody listens there")
        protocol = protocol_factory()
        link = Link(self, weather, process, protocol)
        weather.links.append(link)
        protocol.connection_made(link)
        return link, protocol

    # ---- the way of a message

    def _latency(self, weather: Weather) -> float:
        random = self._random
        if random.random() < SLOW_PART:
            return random.uniform(weather.latency_s[1], max(SLOW_S, weather.latency_s[1]))
        return random.uniform(*weather.latency_s)

    def request(self, link: "Link", data: bytes) -> None:
        """Send to the server."""
        if self.sends:
            self.sends(link, data)
        weather = link.weather
        if weather.losing_requests and self._random.random() < weather.losing_requests:
            link.break_off(self._random.uniform(*NOTICED_S), self._random.uniform(*NOTICED_S))
        elif weather.held_requests or link.requests:
            link.requests.append(data)
        else:
            self._send_request(link, data)

    def _send_request(self, link: "Link", data: bytes) -> None:
        link.requested_at = max(link.requested_at, self._loop.now + self._latency(link.weather))
        self._loop.call_when(link.requested_at, self._arrive, link, data, context=self._server.context)

    def _arrive(self, link: "Link", data: bytes) -> None:
        if link.session is not None:
            if data:
                if self.watch:
                    self.watch(link, "request", data)
                link.session.feed(data)
            else:
                link.end_session()

    def reply(self, link: "Link", data: bytes) -> None:
        """Send to the process."""
        if self.answered:
            self.answered(link)
        weather = link.weather
        if weather.losing_replies and self._random.random() < weather.losing_replies:
            link.break_off(self._random.uniform(*NOTICED_S), self._random.uniform(*NOTICED_S))
        elif weather.held_replies or link.replies:
            link.replies.append(data)
        else:
            self._send_reply(link, data)

    def _send_reply(self, link: "Link", data: bytes) -> None:
        link.replied_at = max(link.replied_at, self._loop.now + self._latency(link.weather))
        self._loop.call_when(link.replied_at, link.deliver, data, context=link.context)

    def release(self, role: str) -> None:
        """Deliver the held messages of a process."""
        weather = self.weather(role)
        weather.held_requests = weather.held_replies = False
        self._let_connect(weather)
        for link in list(weather.links):
            requests, link.requests = link.requests, []
            replies, link.replies = link.replies, []
            for data in requests:
                self._send_request(link, data)
            for data in replies:
                self._send_reply(link, data)

    def server_goes_on(self) -> None:
        """Have those connect that could not, since the server stood still."""
        for weather in self._weathers.values():
            self._let_connect(weather)

    def _let_connect(self, weather: Weather) -> None:
        waiting, weather.connecting = weather.connecting, []
        for one in waiting:
            if not one.done():  # else it was given up
                one.set_result(None)

    # ---- faults

    def reset(self, role: str, *, both: bool = True) -> None:
        """Break all links of a process.

        Without ``both``, the server does not notice for long, as after a power failure.
        """
        for link in list(self.weather(role).links):
            link.break_off(self._random.uniform(*NOTICED_S), self._random.uniform(*NOTICED_S) if both else 60.0)

    def leave(self, role: str) -> None:
        """A process has ended. Its machine still sends the held messages, and then the end of its links."""
        weather = self.weather(role)
        for link in list(weather.links):
            if weather.held_requests or link.requests:
                link.leave()
            else:
                link.break_off(self._random.uniform(*NOTICED_S), self._random.uniform(*NOTICED_S))

    def drop_all(self) -> None:
        """The server is gone, and all links with it, at once."""
        for weather in list(self._weathers.values()):
            for link in list(weather.links):
                link.break_off(self._random.uniform(0.001, 0.05), 0.0)


class Link(asyncio.Transport):
    """One connection, which is the transport of redis-py's streams, and the server's session."""

    def __init__(self, network: Network, weather: Weather, process: Process | None, protocol: Any) -> None:
        super().__init__()
        network.links += 1
        self.number = network.links
        self.weather = weather
        self.process = process
        self.context = process.context.copy() if process else Context()
        self.requested_at = self.replied_at = 0.0
        self.requests: list[bytes] = []
        self.replies: list[bytes] = []
        self._network = network
        self._protocol = protocol
        self._closing = False
        self.session: Session | None = None
        self._served = True
        session = network._accept(self._reply, self._hung_up)
        if self._served:
            self.session = session

    # ---- the process's end

    def write(self, data: Any) -> None:
        """Send. Bytes on a broken link are lost."""
        if not self._closing:
            self._network.request(self, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        """Send."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Close. Earlier bytes arrive before."""
        if not self._closing:
            self._closing = True
            if self.requests or self.weather.held_requests:
                self.requests.append(b"")
            else:
                self._network._send_request(self, b"")
            self._network._loop.call_soon(self._lost, None, context=self.context)

    def write_eof(self) -> None:
        """Close. Early versions of anyio send the end before they close."""
        self.close()

    def abort(self) -> None:
        """Close."""
        self.close()

    def is_closing(self) -> bool:
        """Tell whether it is closed, or about to be."""
        return self._closing

    def set_protocol(self, protocol: Any) -> None:
        """Let another object receive the bytes."""
        self._protocol = protocol

    def get_protocol(self) -> Any:
        """Return the receiver of the bytes."""
        return self._protocol

    def get_write_buffer_size(self) -> int:
        """There is no waiting here."""
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """There is no waiting here."""

    def pause_reading(self) -> None:
        """A slow reader keeps the received bytes in memory."""

    def resume_reading(self) -> None:
        """See `pause_reading`."""

    def is_reading(self) -> bool:
        """Received bytes are delivered."""
        return not self._closing

    def deliver(self, data: bytes) -> None:
        """Hand over what has arrived."""
        if not self._closing:
            if self._network.watch:
                self._network.watch(self, "reply", data)
            self._protocol.data_received(data)

    def _lost(self, error: Exception | None) -> None:
        self._closing = True
        self._protocol.connection_lost(error)
        self._forget()

    # ---- the server's end

    def _reply(self, data: bytes) -> None:
        if self._served:
            self._network.reply(self, data)

    def _hung_up(self) -> None:
        """The server closes the link.

        Its earlier bytes arrive before. A client whose link was broken notices it itself.
        """
        self._served, self.session = False, None
        if self.replied_at != inf:
            due = max(self.replied_at, self._network._loop.now + self.weather.latency_s[1])
            self._network._loop.call_when(due, self._end, context=self.context)

    def _end(self) -> None:
        if not self._closing:
            self._lost(None)

    def end_session(self) -> None:
        """The server has met the end."""
        session, self.session = self.session, None
        self._served = False
        if session is not None:
            session.close()
        self._forget()

    # ---- in between

    def break_off(self, process_after_s: float, server_after_s: float) -> None:
        """No more bytes arrive on either end. Each notices in its own time."""
        loop = self._network._loop
        self.requests, self.replies = [], []
        if not self._closing:
            self.requested_at = self.replied_at = inf  # bytes from now on never arrive
            loop.call_when(loop.now + process_after_s, self._reset, context=self.context)
        loop.call_when(loop.now + server_after_s, self.end_session, context=self._network._server.context)

    def leave(self) -> None:
        """The process is gone. Its earlier bytes arrive before the end."""
        self._closing, self.replies = True, []
        self.requests.append(b"")

    def _reset(self) -> None:
        if not self._closing:
            self._lost(ConnectionResetError(104, "simulated: connection reset by peer"))

    def _forget(self) -> None:
        if self._closing and self.session is None and self in self.weather.links:
            self.weather.links.remove(self)
