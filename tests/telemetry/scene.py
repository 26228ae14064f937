"""Processes that export to a receiver of the test, and questions about their trace."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.support.http import request
from tests.support.processes import Processes, Running
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.telemetry.otlp import Received, ReceivedSpan

PROGRAM = "tests.telemetry.program"
VISIBILITY = ("--visibility-timeout", "1")


@dataclass
class Scene:
    """One Redis, one receiver, and processes."""

    processes: Processes
    server: RedisServer
    received: Received
    env: dict[str, str] = field(default_factory=dict)

    @property
    def _env(self) -> dict[str, str]:
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.received.endpoint, "OTEL_METRIC_EXPORT_INTERVAL": "200", **self.env}

    async def worker(self, *flags: str, attribute: str = "worker") -> Running:
        """Start a worker of the program and wait until it works."""
        running = self.processes.worker(
            f"{PROGRAM}:{attribute}", "--redis-url", self.server.url, *VISIBILITY, *flags, env=self._env
        )
        await running.prints("worker started")
        return running

    async def reaper(self, *flags: str) -> Running:
        """Start a reaper and wait until it holds the lease."""
        running = self.processes.reaper(
            "--redis-url", self.server.url, "--groups", "orders/billing", *VISIBILITY, "--lease-ttl", "2", *flags,
            env=self._env,
        )  # fmt: skip
        await running.prints("lease taken")
        return running

    async def produce(self, *fields: str) -> str:
        """Enqueue a job in a process of its own. Return its ID."""
        running = self.processes.python("-m", PROGRAM, self.server.url, *fields, env=self._env, name="producer")
        assert await running.wait() == 0, running.output
        return (await running.prints(r"enqueued (\w+)"))[1]

    async def redrive(self) -> None:
        """Run ``reaper dead-letters redrive --all``."""
        words = ("dead-letters", "redrive", "orders/billing", "--all", "--redis-url", self.server.url)
        running = self.processes.python("-m", "reaper", *words, name="redrive")
        assert await running.wait() == 0, running.output

    async def spans(self, job: str, *names: str) -> list[ReceivedSpan]:
        """Wait until the job's trace has at least so many spans of these names. Return it, in order."""

        def complete() -> list[ReceivedSpan]:
            trace = trace_of(self.received, job)
            found = [span.name.split()[0] for span in trace]
            return trace if all(found.count(name) >= names.count(name) for name in names) else []

        return await wait_until(complete, f"the trace of {job} has {names}")


def trace_of(received: Received, job: str) -> list[ReceivedSpan]:
    """Return the spans of the trace of a job."""
    spans = list(received.spans)
    traces = {span.trace_id for span in spans if span.attributes.get("reaper.job.id") == job}
    return sorted((span for span in spans if span.trace_id in traces), key=lambda span: (span.start_ns, span.end_ns))


def dangling(spans: Sequence[ReceivedSpan]) -> list[str]:
    """Return parents that lead nowhere."""
    there = {(span.trace_id, span.span_id) for span in spans}
    return [
        f"{span.name}: parent {span.parent_id}"
        for span in spans
        if span.parent_id and (span.trace_id, span.parent_id) not in there
    ]


def told_of(span: ReceivedSpan, spans: Sequence[ReceivedSpan]) -> tuple[Any, ...]:
    """Return a span in the form that tests compare, which is its process, name, kind and parent."""
    names = {(other.trace_id, other.span_id): _short(other) for other in spans}
    parent = names.get((span.trace_id, span.parent_id), span.parent_id)
    return (span.service, _short(span), span.kind, parent)


def _short(span: ReceivedSpan) -> str:
    attempt = span.attributes.get("reaper.delivery")
    return span.name + (f" #{attempt}" if attempt else "")


async def metrics_of(process: Running) -> str:
    """Return the metrics that a process shows on its health port."""
    port = (await process.prints(r"health endpoint started: url=http://[\d.]+:(\d+)"))[1]
    return (await request(int(port), "/metrics")).body.decode()
