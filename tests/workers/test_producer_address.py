"""The addresses of producers, and the event loops that one producer serves."""

from typing import Any

import pytest

from tests.support.servers import RedisServer
from workers import ConfigurationError, Producer, SyncProducer, UnreachableError

pytestmark = pytest.mark.anyio


def jobs(server: RedisServer) -> int:
    return int(server.command("XLEN", "orders"))


async def test_an_error_after_the_write_never_says_that_nothing_was_written(server: RedisServer) -> None:
    async with Producer("orders", server.url) as orders:
        pool = orders._client.connection_pool

        class Breaking(pool.connection_class):  # type: ignore[misc,name-defined]
            async def read_response(self, *words: Any, **options: Any) -> Any:
                reply = await super().read_response(*words, **options)
                if reply == [1]:  # the script has enqueued the job
                    raise RuntimeError("broken")
                return reply

        pool.connection_class = Breaking
        with pytest.raises(UnreachableError, match=r"cannot confirm 1 job of 'orders', .*: broken"):
            await orders.enqueue({"n": 1}, job_id="a")
    assert jobs(server) == 1


@pytest.mark.parametrize("variable", ["REDIS_URL", "REAPER_REDIS_URL"])
async def test_without_an_address_the_environment_names_one(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("REAPER_STREAM", "of-a-worker")
    monkeypatch.setenv(variable, server.url)
    async with Producer("orders") as orders:
        await orders.enqueue({"n": 1})
    with SyncProducer("orders") as others:
        others.enqueue({"n": 2})
    assert jobs(server) == 2


def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REAPER_REDIS_ULR", "redis://127.0.0.1:1/0")
    for kind in (Producer, SyncProducer):
        with pytest.raises(ConfigurationError, match="Did you mean 'REAPER_REDIS_URL'"):
            kind("orders")
