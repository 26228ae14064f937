"""Reports to systemd that the process is ready, alive or stopping (sd_notify(3)).

It works only with ``NOTIFY_SOCKET``. A thread of its own reports, and judges by the same rule as ``/livez``. While the
process is unhealthy, the watchdog gets no more messages, so systemd restarts the process.
"""

import logging
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from workers.protocol.log_fields import fields
from workers.runtime.health_server import Pulse, joined

logger = logging.getLogger(__name__)

READY, WATCHDOG, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"
INTERVAL_S = 0.5
"""How often the thread looks at the process, unless the watchdog expects more."""
SEND_TIMEOUT_S = 1.0
END_S = 2.0


class Condition(Protocol):
    """The state of a process. Called in the reporting thread, so it must not wait for the service's loop."""

    def ailments(self) -> Sequence[str]:
        """Return why the process should be restarted. Empty if it is healthy."""

    def is_ready(self) -> bool:
        """Whether the process has begun its work."""

    def is_stopping(self) -> bool:
        """Whether the process was asked to stop."""

    def summary(self) -> str:
        """Return a line for `systemctl status`."""


@dataclass(frozen=True, slots=True)
class ServiceManager:
    """systemd's socket, and the timeout of its watchdog."""

    address: str
    watchdog_s: float | None = None
    """Seconds without a message after which systemd restarts the process. None without a watchdog."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "ServiceManager | None":
        """Return the service manager that started this process, or None."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return None
        microseconds = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watched = ours and microseconds.isdecimal() and int(microseconds) > 0
        return cls(address, int(microseconds) / 1_000_000 if watched else None)

    @property
    def interval_s(self) -> float:
        """The time between two reports, a third of the watchdog's timeout."""
        return min(INTERVAL_S, self.watchdog_s / 3) if self.watchdog_s else INTERVAL_S

    def send(self, *lines: str) -> None:
        """Send one datagram. Raises OSError."""
        address = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(SEND_TIMEOUT_S)
            sender.sendto("\n".join(lines).encode(), address)


class Messages:
    """Decides which lines to send. It sends each change once, and WATCHDOG if the process is healthy."""

    def __init__(self, condition: Condition, *, has_watchdog: bool) -> None:
        self._condition = condition
        self._has_watchdog = has_watchdog
        self._sent: set[str] = set()
        self._status = ""
        self.is_unhealthy = False
        """The result of the last look."""

    def due(self) -> list[str]:
        """Return the lines to send now."""
        condition, lines = self._condition, []
        if condition.is_stopping():
            lines += self._once(STOPPING)
        elif condition.is_ready():
            lines += self._once(READY)
        ailments = condition.ailments()
        still_unhealthy, self.is_unhealthy = self.is_unhealthy and bool(ailments), bool(ailments)
        status = " ".join(("; ".join(ailments) or condition.summary()).split())
        if status != self._status and not still_unhealthy:  # a text like "for 31 s" always changes
            self._status = status
            lines.append(f"STATUS={status}")
        if self._has_watchdog and not ailments:
            lines.append(WATCHDOG)
        return lines

    def last(self) -> list[str]:
        """Return the lines to send when the process ends."""
        return self._once(STOPPING)

    def _once(self, line: str) -> list[str]:
        if line in self._sent:
            return []
        self._sent.add(line)
        return [line]


@asynccontextmanager
async def reporting_to_service_manager(
    make_condition: Callable[[Pulse], Condition], environment: Mapping[str, str] = os.environ
) -> AsyncIterator[None]:
    """Report the state of the process to systemd while the block runs, if systemd started it."""
    manager = ServiceManager.from_environment(environment)
    if manager is None:
        yield
        return
    pulse, ended = Pulse(), threading.Event()
    messages = Messages(make_condition(pulse), has_watchdog=manager.watchdog_s is not None)
    thread = threading.Thread(target=_report, args=(manager, messages, ended), name="service manager", daemon=True)
    thread.start()
    try:
        yield
    finally:
        pulse.stop()
        ended.set()
        await joined(thread, END_S)


def _report(manager: ServiceManager, messages: Messages, ended: threading.Event) -> None:
    has_failed = False
    while True:
        is_last, was_unhealthy = ended.is_set(), messages.is_unhealthy
        lines = messages.last() if is_last else messages.due()
        try:
            if lines:
                manager.send(*lines)
                has_failed = False
        except OSError as error:
            if not has_failed:
                cause = error.strerror or error
                logger.warning("cannot notify systemd: %s", fields(cause=cause, lines=",".join(lines)))
            has_failed = True
        if messages.is_unhealthy and not was_unhealthy:
            logger.error(
                "process is unhealthy, systemd's watchdog gets no more messages: %s", fields(lines=",".join(lines))
            )
        if is_last:
            return
        ended.wait(manager.interval_s)
