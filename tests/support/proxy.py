"""A TCP proxy between a client and Redis that makes the faults a network makes.

It forwards whole requests and whole replies, so that it can drop exactly the reply of one request. Then the server has
done the work, and the client does not know it. Subscriptions are not supported, because their replies answer no
request.
"""

import asyncio
import socket
import struct
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import anyio

from tests.support.patience import PATIENCE_S
from tests.support.resp import ProtocolError, Request, read_reply, read_request
from tests.support.servers import RedisServer, has_maxcount
from tests.support.waiting import happens
from workers.protocol.scripts import Script

Predicate = Callable[[Request], bool]

_LINK_ENDS = (OSError, asyncio.IncompleteReadError, ProtocolError)


def command(name: str) -> Predicate:
    """Match a command by its name, for example ``XADD``."""
    wanted = name.upper().encode()
    return lambda request: request.command == wanted


def served_read(server: RedisServer) -> Predicate:
    """Match a read of a worker, unless ``server`` rejects it, because it does not know MAXCOUNT."""
    served = has_maxcount(server)
    return lambda request: request.command == b"XREADGROUP" and (b"MAXCOUNT" in request.words) is served


def runs(script: Script) -> Predicate:
    """Match a run of ``script``, by its digest or its source."""
    wanted = {(b"EVALSHA", script.digest.encode()), (b"EVAL", script.source.encode())}
    return lambda request: (request.command, *request.words[1:2]) in wanted


class Catch:
    """A request that the proxy waits for. With ``every``, it matches all until they are released."""

    def __init__(self, matches: Predicate, nth: int, *, every: bool = False) -> None:
        self._matches, self._left = matches, nth
        self.every = every
        self._caught, self._released = anyio.Event(), anyio.Event()

    def take(self, request: Request) -> bool:
        """Return whether ``request`` matches, and count it if it does. For the proxy."""
        if self.every:
            return not self._released.is_set() and self._matches(request)
        if self._left and self._matches(request):
            self._left -= 1
            return self._left == 0
        return False

    def report(self) -> None:
        """Say that it has happened. For the proxy."""
        self._caught.set()

    @property
    def happened(self) -> bool:
        """Tell whether the reply has been dropped, or the request is being held."""
        return self._caught.is_set()

    async def wait(self, patience: float = PATIENCE_S) -> None:
        """Wait until it has happened. Raises AssertionError as `tests.support.waiting` says."""
        await happens(self._caught.wait, "the request came that the proxy waits for", patience)

    def release(self) -> None:
        """Let what is held go on to the server."""
        self._released.set()

    async def wait_for_release(self) -> None:
        """For the proxy."""
        await self._released.wait()


class Proxy:
    """One listening port in front of one server. `started_proxy` builds it."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.port = 0
        self.commands: Counter[str] = Counter()
        """How many requests of each command passed."""
        self._drops: list[Catch] = []
        self._holds: list[Catch] = []
        self._links: set[_Link] = set()
        self._gate = anyio.Event()
        self._gate.set()
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Its address for clients."""
        return f"redis://127.0.0.1:{self.port}/0"

    def drop_reply(self, matches: Predicate, nth: int = 1) -> Catch:
        """Swallow the reply of the ``nth`` matching request from now on, and close its connection.

        The request reaches the server and is done when the returned `Catch` has happened.
        """
        catch = Catch(matches, nth)
        self._drops.append(catch)
        return catch

    def hold_request(self, matches: Predicate, nth: int = 1) -> Catch:
        """Keep the ``nth`` matching request from the server until the returned `Catch` is released."""
        catch = Catch(matches, nth)
        self._holds.append(catch)
        return catch

    def hold_requests(self, matches: Predicate) -> Catch:
        """Keep all matching requests from the server until the returned `Catch` is released.

        A client gives up after some seconds and asks again, so this blocks everything meanwhile.
        """
        catch = Catch(matches, 1, every=True)
        self._holds.append(catch)
        return catch

    def blackhole(self) -> None:
        """Accept connections and bytes, but pass none on, in either direction."""
        if self._gate.is_set():
            self._gate = anyio.Event()

    async def cut(self) -> None:
        """Reset every connection, and refuse new ones."""
        if self._accepting:
            self._accepting.cancel()
            await asyncio.wait([self._accepting])
            self._accepting = None
        if self._listener:
            self._listener.close()
            self._listener = None
        await self.disconnect()

    async def disconnect(self, *, by_reset: bool = False) -> None:
        """End every connection, ``by_reset`` as a machine that went down does. New ones are served."""
        links = list(self._links)
        if by_reset:
            for link in links:
                link.accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for link in links:
            link.scope.cancel()
        for link in links:
            await link.closed.wait()

    async def mend(self) -> None:
        """End `cut` and `blackhole`. Kept bytes are forwarded, and the same port accepts connections."""
        self._gate.set()
        await self.listen()

    async def listen(self) -> None:
        """Accept connections."""
        if not self._listener:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self._listener.setblocking(False)
            self.port = self._listener.getsockname()[1]
            self._accepting = asyncio.create_task(self._accept(self._listener))

    async def _accept(self, listener: socket.socket) -> None:
        """Accept until cancelled. asyncio's own ways lose a connection that they accept while they are cancelled."""
        while True:
            await anyio.wait_readable(listener)
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                continue  # it is gone again
            accepted.setblocking(False)
            link = _Link(accepted)
            self._links.add(link)
            link.task = asyncio.create_task(self._serve(link))

    async def _serve(self, link: "_Link") -> None:
        try:
            with link.scope:
                from_client, to_client = await asyncio.open_connection(sock=link.accepted)
                try:
                    await self._connect(from_client, to_client)
                finally:
                    to_client.transport.abort()
        finally:
            link.accepted.close()
            self._links.discard(link)
            link.closed.set()

    async def _connect(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        await self._gate.wait()
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.server.port)
        except OSError:
            return
        fates: deque[Catch | None] = deque()
        try:
            async with anyio.create_task_group() as pumps:
                pumps.start_soon(self._pump_requests, from_client, to_server, fates, pumps.cancel_scope)
                pumps.start_soon(self._pump_replies, from_server, to_client, fates, pumps.cancel_scope)
        finally:
            to_server.transport.abort()

    async def _pump_requests(
        self,
        client: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        fates: "deque[Catch | None]",
        scope: anyio.CancelScope,
    ) -> None:
        with suppress(*_LINK_ENDS):
            while True:
                request = await read_request(client)
                self.commands[request.command.decode()] += 1
                await self._gate.wait()
                held = _first_taker(self._holds, request)
                if held:
                    held.report()
                    await held.wait_for_release()
                fates.append(_first_taker(self._drops, request))
                server.write(request.raw)
                await server.drain()
        scope.cancel()

    async def _pump_replies(
        self,
        server: asyncio.StreamReader,
        client: asyncio.StreamWriter,
        fates: "deque[Catch | None]",
        scope: anyio.CancelScope,
    ) -> None:
        with suppress(*_LINK_ENDS):
            while True:
                reply = await read_reply(server)
                await self._gate.wait()
                drop = fates.popleft() if fates else None  # notices of Pub/Sub answer no request
                if drop:
                    drop.report()
                    break
                client.write(reply)
                await client.drain()
        scope.cancel()


class _Link:
    """One client's connection through the proxy."""

    def __init__(self, accepted: socket.socket) -> None:
        self.accepted = accepted
        self.scope = anyio.CancelScope()
        self.closed = anyio.Event()
        self.task: asyncio.Task[None] | None = None
        """Kept, so that it is not collected while it runs."""


def _first_taker(catches: list[Catch], request: Request) -> Catch | None:
    for catch in catches:
        if catch.take(request):
            if not catch.every:
                catches.remove(catch)
            return catch
    return None


@asynccontextmanager
async def started_proxy(server: RedisServer) -> AsyncIterator[Proxy]:
    """Run a proxy in front of ``server`` on a free port until the block ends."""
    proxy = Proxy(server)
    await proxy.listen()
    try:
        yield proxy
    finally:
        await proxy.cut()
