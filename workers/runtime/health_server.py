"""Serves health over HTTP: ``/livez``, ``/readyz``, ``/status`` and ``/metrics``.

The server has a thread of its own, because `/livez` judges the event loop. A handler that blocks the loop must not
block the probe, and readers of a page must not slow the service. Needs the extra ``web`` (starlette and uvicorn).
"""

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from ipaddress import ip_address
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import anyio
from anyio import to_thread

from workers.protocol.errors import ConfigurationError
from workers.protocol.log_fields import fields

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import BaseRoute

logger = logging.getLogger(__name__)

BEAT_S = 0.5
MOST_REQUESTS = 512
"""Connections and requests at a time. uvicorn answers further requests, probes included, with 503."""
GOODBYE_S = 1
END_S = 3.0
READY_TIMEOUT_S = 2.0
NO_STORE = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")

Render = Callable[[], tuple[bytes, str]]
"""Returns metrics as they are exposed, and their content type. Called in the health server's thread."""


@dataclass(slots=True)
class MetricsHook:
    """Telemetry registers the answer of ``/metrics`` here. Without it the page does not exist."""

    render: Render | None = None


METRICS = MetricsHook()


class Vitals(Protocol):
    """The state of a process. Called in the health server's thread, so it must not wait for the service's loop."""

    def ailments(self) -> Sequence[str]:
        """Return why the process should be restarted. Empty if it is alive."""

    async def obstacles(self) -> Sequence[str]:
        """Return why it is not ready. Empty if it is ready."""

    async def status(self) -> Mapping[str, Any]:
        """Return the content of ``/status``."""


class Pulse:
    """Measures from another thread whether an event loop still runs. Create it in that loop."""

    def __init__(self) -> None:
        self.beat_at = monotonic()
        self._loop = asyncio.get_running_loop()
        self._next: asyncio.Handle = self._loop.call_soon(self._beat)

    def _beat(self) -> None:
        self.beat_at = monotonic()
        self._next = self._loop.call_later(BEAT_S, self._beat)

    def stop(self) -> None:
        """Stop beating."""
        self._next.cancel()

    def ailments(self, patience_s: float) -> list[str]:
        """Return the problem if the loop has not run for longer than ``patience_s``."""
        silent_s = monotonic() - self.beat_at
        return [f"the event loop has not answered for {silent_s:.0f} s"] if silent_s > patience_s else []


AppFactory = Callable[[Pulse], AbstractAsyncContextManager["Starlette"]]
"""Makes the app, in the loop it is served in."""


@asynccontextmanager
async def health_server(host: str, port: int, make_app: AppFactory) -> AsyncIterator[int]:
    """Serve an app from a thread while the block runs, with the pulse of this loop. Yields the port."""
    check_installed()
    listener = _listen(host, port)
    bound: int = listener.getsockname()[1]
    pulse, ended = Pulse(), threading.Event()
    thread = threading.Thread(target=_serve_until, args=(ended, listener, make_app, pulse), name="health", daemon=True)
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    logger.info("health endpoint started: %s", fields(url=f"http://{shown}:{bound}/"))
    try:
        yield bound
    finally:
        pulse.stop()
        ended.set()
        await joined(thread, END_S)


async def joined(thread: threading.Thread, timeout_s: float) -> None:
    """Wait for the end of a thread, also during a cancellation, but no longer than ``timeout_s``."""
    with anyio.CancelScope(shield=True), anyio.move_on_after(timeout_s):
        await to_thread.run_sync(thread.join, abandon_on_cancel=True)


def check_installed() -> None:
    """Raise ConfigurationError if the extra is missing."""
    try:
        for name in ("starlette.applications", "uvicorn"):
            import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            "health_port needs packages that are not installed. Run pip install '.[web]' in your clone."
        ) from error


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen on health_port {port} of {host}: {error.strerror or error}. Set health_port or health_host."
        ) from error
    return listener


def _serve_until(ended: threading.Event, listener: socket.socket, make_app: AppFactory, pulse: Pulse) -> None:
    """Run uvicorn in an event loop of its own."""
    try:
        asyncio.run(_serve(ended, listener, make_app, pulse))
    except Exception:
        logger.exception("health server failed; the service continues without it")
    finally:
        listener.close()


async def _serve(ended: threading.Event, listener: socket.socket, make_app: AppFactory, pulse: Pulse) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or ended.is_set()

    async with make_app(pulse) as app:
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            loop="asyncio",
            limit_concurrency=MOST_REQUESTS,
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=GOODBYE_S,
        )
        await Server(config).serve(sockets=[listener])


# --- the app ------------------------------------------------------------------------------------------------


def probe_routes(vitals: Vitals) -> "list[BaseRoute]":
    """Return the routes that every process has."""
    from starlette.responses import JSONResponse, Response
    from starlette.routing import Route

    def answer(reasons: Sequence[str]) -> Response:
        state = {"status": "failing" if reasons else "ok", "reasons": list(reasons)}
        return JSONResponse(state, 503 if reasons else 200, NO_STORE)

    async def livez(_request: "Request") -> Response:
        return answer(vitals.ailments())

    async def readyz(_request: "Request") -> Response:
        with anyio.move_on_after(READY_TIMEOUT_S):
            return answer(await vitals.obstacles())
        return answer([f"no answer within {READY_TIMEOUT_S:g} s"])

    async def status(_request: "Request") -> Response:
        found = await vitals.status()
        return JSONResponse(found, 503 if found.get("status") == "unreachable" else 200, NO_STORE)

    async def metrics(_request: "Request") -> Response:
        if METRICS.render is None:
            return Response("no metrics: telemetry is off\n", 404, NO_STORE, "text/plain")
        content, kind = METRICS.render()
        return Response(content, 200, {**NO_STORE, "Content-Type": kind})

    handlers: dict[str, Callable[[Request], Awaitable[Response]]] = {
        "/livez": livez, "/readyz": readyz, "/status": status, "/metrics": metrics,
    }  # fmt: skip
    return [Route(path, handler, methods=["GET"]) for path, handler in handlers.items()]


def make_app(routes: "Sequence[BaseRoute]", host: str) -> "Starlette":
    """Return the app. On the loopback interface it accepts only loopback host names, because of DNS rebinding."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    names = [*LOOPBACK_NAMES, host] if is_loopback(host) else ["*"]
    return Starlette(
        routes=list(routes),
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=names, www_redirect=False)],
    )


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
