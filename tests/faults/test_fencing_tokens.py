"""A job's fencing token grows with every delivery, however the job came to it."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis

from reaper.operations.dead_letters import Selection, select
from reaper.operations.ready_again import Outcome, ReadyAgain
from tests.faults.reapers import Case, holding, nothing_left, quick_settings
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from tests.workers.scene import KEYS, make_worker, running
from workers import Job, Reject, Retry, Worker

pytestmark = pytest.mark.anyio


class Deliveries:
    """Notes each delivery's token, and does with it what the test has said."""

    def __init__(self, url: str, policy: str) -> None:
        self.tokens: list[int] = []
        self._url = url
        self._policy = policy

    def worker(self, end: Callable[[], BaseException] | None = None, **settings: Any) -> Worker:
        """Return a worker whose handler raises ``end``, or hangs."""

        async def handle(job: Job) -> None:
            self.tokens.append(job.fencing_token)
            if end is None:
                await anyio.sleep_forever()
            else:
                worker.stop()  # one delivery is enough
                raise end()

        quick: dict[str, Any] = {
            "visibility_timeout": 30,
            "max_deliveries": 20,
            "drain_timeout": 0,
            "redelivery": self._policy,
        }
        worker = make_worker(self._url, handle, **{**quick, "redelivery": self._policy, **settings})
        return worker

    async def one_more(self, worker: Worker, *, now: bool = False) -> None:
        """Let ``worker`` have one delivery, and wait for its end."""
        before = len(self.tokens)
        async with running(worker):
            await wait_until(lambda: len(self.tokens) > before, "the job is delivered")
            worker.stop(now=now)


@pytest.mark.parametrize("policy", ["stream", "retry-stream"])
async def test_tokens_grow_across_nack_hand_back_adoption_recovery_and_redrive(
    server: RedisServer, client: Redis, policy: str
) -> None:
    case = await Case.prepared(server, client)
    await case.enqueue(1)
    deliveries = Deliveries(server.url, policy)
    await deliveries.one_more(deliveries.worker(Retry))  # nack
    await deliveries.one_more(deliveries.worker())  # handed back at the drain deadline
    await deliveries.one_more(deliveries.worker(name="w"), now=True)  # left pending …
    async with holding(quick_settings(server, max_deliveries=20, redelivery=policy)):
        # … made overdue by the next process of the name, recovered, and left pending again …
        await deliveries.one_more(deliveries.worker(name="w"), now=True)
        assert await _recoveries(case) == 1
        await case.make_overdue()
        await wait_until(lambda: _is_recovered_twice(case), "… recovered")
        await deliveries.one_more(deliveries.worker(lambda: Retry(counts=False, delay=0)))  # an uncounted retry
        await deliveries.one_more(deliveries.worker(lambda: Retry(delay=0.05)))  # scheduled
        await deliveries.one_more(deliveries.worker(lambda: Reject("no")))  # dead …
    letters = [letter.id async for letter in select(client, KEYS, Selection())]
    results = [one async for one in ReadyAgain(client, KEYS).redrive(letters)]
    assert [one.outcome for one in results] == [Outcome.DONE]  # … redriven
    await deliveries.one_more(deliveries.worker(Retry))
    await deliveries.one_more(deliveries.worker(lambda: Reject("no")))

    assert len(deliveries.tokens) == 9
    assert deliveries.tokens == sorted(set(deliveries.tokens))
    assert nothing_left(await case.state())


async def _recoveries(case: Case) -> int:
    return len([event for event in await case.events("recovered") if event.data["mode"] == "reaper"])


async def _is_recovered_twice(case: Case) -> bool:
    return await _recoveries(case) == 2
