"""Serves health over HTTP: ``/livez``, ``/readyz`` and ``/metrics``, and the pages of a replica.

The server has a thread of its own, because `/livez` judges the event loop. A handler that blocks the loop must not
block the probe, and readers of a page must not slow the service. Needs the extra ``web`` (starlette and uvicorn).
"""

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from time import monotonic
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from redis.asyncio import Redis
from redis.exceptions import RedisError

from workers.protocol.connection import commands_client
from workers.protocol.errors import ConfigurationError
from workers.protocol.log_fields import fields

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.routing import BaseRoute
    from uvicorn import Server

logger = logging.getLogger(__name__)

BEAT_S = 0.5
MOST_CONNECTIONS = 256
"""Connections at a time. For a further one, the oldest is closed, so clients that say nothing keep no probe waiting."""
GOODBYE_S = 1
END_S = 3.0
REDIS_TIMEOUT_S = 2.0
LIVENESS_TIMEOUT_S = 60.0
"""`/livez` fails once the event loop has not answered for this long, for example while an `async` handler blocks it."""
NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")

Obstacles = Callable[[], Sequence[str]]
"""Returns the reasons why a process is not ready, without a call to Redis. Called in the health server's thread."""
Pages = Callable[[Redis], "Sequence[BaseRoute]"]
"""Makes further routes, which use the client."""


class Pulse:
    """Measures from another thread whether an event loop still runs. Create it in that loop."""

    def __init__(self) -> None:
        self._beat()

    def _beat(self) -> None:
        self.beat_at = monotonic()
        self._next = asyncio.get_running_loop().call_later(BEAT_S, self._beat)

    def stop(self) -> None:
        """Stop beating."""
        self._next.cancel()

    def failures(self) -> list[str]:
        """Return the reason to restart the process, if its loop has not run for too long."""
        silent_s = monotonic() - self.beat_at
        return [f"the event loop has not answered for {silent_s:.0f} s"] if silent_s > LIVENESS_TIMEOUT_S else []


@asynccontextmanager
async def health_server(
    host: str, port: int | None, url: str, key: str, obstacles: Obstacles, pages: Pages = lambda _: ()
) -> AsyncIterator[int | None]:
    """Serve the probes of this process, and ``pages``, from a thread while the block runs. Yields the port.

    Without a port there is no server. A process is ready only while Redis at ``url`` answers, in a cluster the node of
    ``key``. Raises ConfigurationError.
    """
    if port is None:
        yield None
        return
    probing = commands_client(url, key=key, timeout_s=REDIS_TIMEOUT_S, max_connections=2)
    reading = commands_client(url, timeout_s=REDIS_TIMEOUT_S, max_connections=4)  # pages keep no probe waiting
    pulse = Pulse()
    try:
        server = _server_of([*_probe_routes(pulse, obstacles, probing), *pages(reading)], host)
    except ImportError as error:
        raise ConfigurationError(
            "health_port needs packages that are not installed. Run pip install '.[web]' in your clone."
        ) from error
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on health_port {port} of {host}: {error.strerror or error}. Set health_port or health_host."
        ) from error
    bound: int = listener.getsockname()[1]
    thread = threading.Thread(target=_serve, args=(server, listener, (probing, reading)), name="health", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    logger.info("health endpoint started: %s", fields(url=f"http://{shown}:{bound}/"))
    try:
        yield bound
    finally:
        pulse.stop()
        server.should_exit = True
        with anyio.CancelScope(shield=True), anyio.move_on_after(END_S):
            await to_thread.run_sync(thread.join, abandon_on_cancel=True)


def _serve(server: "Server", listener: socket.socket, clients: Iterable[Redis]) -> None:
    """Run uvicorn in an event loop of its own, to which the clients belong."""

    async def serve() -> None:
        try:
            await server.serve(sockets=[listener])
        finally:
            for client in clients:
                await client.aclose()

    try:
        asyncio.run(serve())
    except Exception:
        logger.exception("health server failed, the service continues without it")
    finally:
        listener.close()


def _server_of(routes: "Sequence[BaseRoute]", host: str) -> "Server":
    """Return the server. On the loopback interface it accepts only loopback host names, because of DNS rebinding."""
    import uvicorn
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from uvicorn.protocols.http.h11_impl import H11Protocol

    opened: dict[H11Protocol, asyncio.Transport] = {}  # oldest first

    class Connection(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn does
            super().connection_made(transport)
            opened[self] = transport
            if len(opened) > MOST_CONNECTIONS:
                opened.pop(next(iter(opened))).abort()

        def connection_lost(self, exc: Exception | None) -> None:
            opened.pop(self, None)
            super().connection_lost(exc)

    names = LOOPBACK_NAMES if host in LOOPBACK_NAMES else ("*",)
    trusted = Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)
    config = uvicorn.Config(
        Starlette(routes=routes, middleware=[trusted]),
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        loop="asyncio",
        http=Connection,
        backlog=MOST_CONNECTIONS,
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=GOODBYE_S,
    )
    return uvicorn.Server(config)


def _probe_routes(pulse: Pulse, obstacles: Obstacles, client: Redis) -> "list[BaseRoute]":
    """Return the routes that every process has."""
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def answer(reasons: Sequence[str]) -> Response:
        state = {"status": "failing" if reasons else "ok", "reasons": list(reasons)}
        return JSONResponse(state, 503 if reasons else 200, NO_STORE)

    async def livez(_request: "Request") -> Response:
        return answer(pulse.failures())

    async def readyz(_request: "Request") -> Response:
        if reasons := obstacles():
            return answer(reasons)
        try:
            with anyio.fail_after(REDIS_TIMEOUT_S):
                await client.ping()
        except (RedisError, OSError) as error:
            return answer([f"Redis does not answer: {str(error) or 'timeout'}"])
        return answer([])

    async def metrics(_request: "Request") -> Response:
        try:
            from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
        except ImportError:
            advice = "Run pip install '.[telemetry]' in your clone."
            return Response(f"no metrics: telemetry is not installed. {advice}\n", 404, NO_STORE, "text/plain")
        return Response(generate_latest(), 200, {**NO_STORE, "Content-Type": CONTENT_TYPE_LATEST})

    return [Route("/livez", livez), Route("/readyz", readyz), Route("/metrics", metrics)]
