"""Notices wake those who wait for their channel, and everybody when one may have been missed."""

import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection

from tests.conftest import StartProxy
from tests.support.servers import RedisServer
from tests.support.waiting import wait_until
from workers.runtime import notices as module
from workers.runtime.notices import Notices, notices_client

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECONNECT_S", 0.01)


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[Notices]:
    client = notices_client(url)
    notices = Notices(client)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(notices.run)
        yield notices
        tasks.cancel_scope.cancel()
    await client.aclose()


async def has_woken(woken: Counter[str], **times: int) -> None:
    await wait_until(lambda: woken == times, f"{times} were woken")


async def test_a_notice_wakes_who_waits_for_its_channel_and_nobody_else(server: RedisServer, client: Redis) -> None:
    woken: Counter[str] = Counter()
    async with listening(server.url) as notices:
        notices.add(lambda: woken.update(["a"]), ["one", "two"])
        notices.add(lambda: woken.update(["b"]), ["two", "three"])
        await wait_until(lambda: woken == {"a": 2, "b": 2}, "all channels are subscribed to")
        for channel, a, b in (("one", 3, 2), ("two", 4, 3), ("three", 4, 4)):
            await client.publish(channel, "1")
            await has_woken(woken, a=a, b=b)


async def test_a_listener_that_comes_later_is_woken_until_it_leaves(server: RedisServer, client: Redis) -> None:
    woken: Counter[str] = Counter()
    async with listening(server.url) as notices:
        early, late = (lambda: woken.update(["early"])), (lambda: woken.update(["late"]))
        notices.add(early, ["one"])
        await wait_until(lambda: woken["early"] == 1, "the first is subscribed")
        notices.add(late, ["two"])
        await wait_until(lambda: woken["late"] == 1, "the second is subscribed")
        await client.publish("two", "1")
        await wait_until(lambda: woken == {"early": 1, "late": 2}, "its notice came")
        notices.remove(early, ["one"])
        await client.publish("one", "1")
        await client.publish("two", "1")
        await wait_until(lambda: woken["late"] == 3, "the later notice came")

        async def is_unsubscribed() -> bool:
            return await client.pubsub_channels() == [b"two"]

        await wait_until(is_unsubscribed, "the channel without waiters is not subscribed to any more")
    assert woken == {"early": 1, "late": 3}


async def test_a_listener_added_meanwhile_is_not_forgotten(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PING_S", 3_600.0)
    woken: Counter[str] = Counter()
    send = AbstractConnection.send_command
    async with listening(server.url) as notices:

        async def send_and_add(connection: AbstractConnection, *words: Any, **options: Any) -> None:
            await send(connection, *words, **options)
            if words == ("SUBSCRIBE", "one"):
                notices.add(lambda: woken.update(["late"]), ["two"])

        monkeypatch.setattr(AbstractConnection, "send_command", send_and_add)
        notices.add(lambda: woken.update(["early"]), ["one"])
        await wait_until(lambda: woken == {"early": 1, "late": 1}, "both are subscribed")


async def test_after_a_lost_connection_everybody_is_woken(server: RedisServer, proxy: StartProxy) -> None:
    woken: Counter[str] = Counter()
    through = await proxy(server)
    async with listening(through.url) as notices:
        notices.add(lambda: woken.update(["a"]), ["one", "two"])
        await wait_until(lambda: woken["a"] == 2, "it listens")
        await through.disconnect()
        await wait_until(lambda: woken["a"] == 4, "it listens again")


async def test_it_waits_for_a_server_that_is_not_there_yet(server: RedisServer, proxy: StartProxy) -> None:
    woken: Counter[str] = Counter()
    through = await proxy(server)
    await through.cut()
    async with listening(through.url) as notices:
        notices.add(lambda: woken.update(["a"]), ["one"])
        await through.mend()
        await wait_until(lambda: woken["a"] == 1, "it listens")


async def test_a_mute_connection_is_left(
    server: RedisServer, proxy: StartProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PING_S", 0.05)
    monkeypatch.setattr(module, "COMMAND_TIMEOUT_S", 0.1)
    woken: Counter[str] = Counter()
    through = await proxy(server)
    async with listening(through.url) as notices:
        notices.add(lambda: woken.update(["a"]), ["one"])
        await wait_until(lambda: woken["a"] == 1 and through.commands["PING"] > 2, "it listens, and is answered")
        through.blackhole()
        await wait_until(lambda: len(through._links) > 1, "it has opened another connection")


async def test_a_missing_right_is_logged_once(
    server: RedisServer, client: Redis, caplog: pytest.LogCaptureFixture
) -> None:
    await client.execute_command("ACL", "SETUSER", "deaf", "on", ">x", "~*", "+@all", "-subscribe")
    try:
        with caplog.at_level(logging.WARNING):
            async with listening(server.url.replace("redis://", "redis://deaf:x@")) as notices:
                notices.add(lambda: None, ["one"])
                await wait_until(lambda: bool(caplog.messages), "it complains")

                async def denied_again() -> bool:
                    return int(server.command("INFO", "commandstats")["cmdstat_subscribe"]["rejected_calls"]) > 2

                await wait_until(denied_again, "it goes on trying")
    finally:
        await client.execute_command("ACL", "DELUSER", "deaf")
    assert len([line for line in caplog.messages if "notices are not available" in line]) == 1
