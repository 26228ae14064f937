"""Tells systemd how the process is: ready, alive, stopping (sd_notify(3)). Without ``NOTIFY_SOCKET``, nothing.

From a thread of its own, as `workers.runtime.health_server` does it, and by the same judgement as ``/livez``: an event
loop that a handler blocks for less than `liveness_timeout` is no reason to restart the process, and a loop that hangs
could not tell of itself. Once something ails, the watchdog is fed no more.
"""

import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

import anyio
from anyio import to_thread

from workers.runtime.health_server import Pulse

logger = logging.getLogger(__name__)

READY, WATCHDOG, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
LOOK_S = 0.5
"""How often the thread looks at the process: so late may systemd learn that it is ready, or stops."""
SEND_TIMEOUT_S = 1.0
END_S = 2.0


class Condition(Protocol):
    """How a process is. Called in the thread that tells systemd: it must not wait for the service's loop."""

    def ailments(self) -> Sequence[str]:
        """Return why the process should be restarted; empty = it lives."""

    def is_ready(self) -> bool:
        """Tell whether the process has begun its work."""

    def is_stopping(self) -> bool:
        """Tell whether it was told to end."""

    def summary(self) -> str:
        """Return a line for `systemctl status`."""


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """Where systemd listens, and how often it wants to hear that the process lives."""

    address: str
    watchdog_s: float | None = None
    """The watchdog's patience; None = there is none."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "ServiceManager | None":
        """Return the one that started this process, if it wants to be told."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return None
        microseconds = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watched = ours and microseconds.isdecimal() and int(microseconds) > 0
        return cls(address, int(microseconds) / 1_000_000 if watched else None)

    def send(self, *lines: str) -> None:
        """Send what is to be known. Raises OSError."""
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(SEND_TIMEOUT_S)
            sender.sendto("\n".join(lines).encode(), address)


class Messages:
    """Decides what to say: each thing once, and WATCHDOG twice within the watchdog's patience, while nothing ails."""

    def __init__(self, condition: Condition, watchdog_s: float | None) -> None:
        self._condition = condition
        self._feed_every_s = watchdog_s / 2 if watchdog_s else None
        self._feed_at = 0.0
        self._ready = False
        self._stopping = False
        self._summary = ""
        self.ails = False
        """Something ailed at the last look."""

    @property
    def pause_s(self) -> float:
        """How long to wait before the next look."""
        return min(LOOK_S, self._feed_every_s or LOOK_S)

    def due(self, now: float) -> list[str]:
        """Return the lines to send at ``now`` (monotonic, in seconds)."""
        ailments = self._condition.ailments()
        return [*self._states(), *self._changed(ailments), *([] if ailments else self._feed(now))]

    def goodbye(self) -> list[str]:
        """Return what to send at the end."""
        return [] if self._stopping else [STOPPING]

    def _states(self) -> list[str]:
        stopping = self._condition.is_stopping()
        news = [READY] if not self._ready and not stopping and self._condition.is_ready() else []
        self._ready |= bool(news)
        if stopping and not self._stopping:
            self._stopping = True
            news.append(STOPPING)
        return news

    def _changed(self, ailments: Sequence[str]) -> list[str]:
        still_ails, self.ails = self.ails and bool(ailments), bool(ailments)
        summary = "; ".join(ailments) or self._condition.summary()
        if still_ails or summary == self._summary:
            return []
        self._summary = summary
        return [f"STATUS={' '.join(summary.split())}"]

    def _feed(self, now: float) -> list[str]:
        if self._feed_every_s is None or now < self._feed_at:
            return []
        # Looks are a pause apart: fed only when due, the watchdog would hear of us a pause too late.
        self._feed_at = now + self._feed_every_s - self.pause_s / 2
        return [WATCHDOG]


@asynccontextmanager
async def telling_service_manager(
    make_condition: Callable[[Pulse], Condition], environment: Mapping[str, str] = os.environ
) -> AsyncIterator[None]:
    """Tell systemd how the process is while the block runs, if systemd wants to know.

    ``make_condition`` gets the pulse of the loop that this runs in.
    """
    manager = ServiceManager.from_environment(environment)
    if manager is None:
        yield
        return
    pulse = Pulse()
    thread = _TellingThread(manager, Messages(make_condition(pulse), manager.watchdog_s))
    thread.start()
    try:
        yield
    finally:
        pulse.stop()
        thread.stop()
        with anyio.CancelScope(shield=True), anyio.move_on_after(END_S):
            await to_thread.run_sync(thread.join, abandon_on_cancel=True)


class _TellingThread(threading.Thread):
    """Looks at the process again and again, and tells of it."""

    def __init__(self, manager: ServiceManager, messages: Messages) -> None:
        super().__init__(name="service manager", daemon=True)
        self._manager = manager
        self._messages = messages
        self._ended = threading.Event()
        self._heard = True

    def run(self) -> None:
        while not self._ended.is_set():
            ailed = self._messages.ails
            lines = self._messages.due(monotonic())
            self._send(lines)
            if self._messages.ails and not ailed:
                logger.error("systemd's watchdog is fed no more (%s)", ", ".join(lines))
            self._ended.wait(self._messages.pause_s)
        self._send(self._messages.goodbye())

    def stop(self) -> None:
        """Say goodbye and end; `join` waits for that."""
        self._ended.set()

    def _send(self, lines: Sequence[str]) -> None:
        if not lines:
            return
        try:
            self._manager.send(*lines)
            self._heard = True
        except OSError as error:
            if self._heard:
                logger.warning("systemd cannot be told that %s: %s", ", ".join(lines), error)
            self._heard = False
