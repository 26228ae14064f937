"""The lines that ``reaper acl`` prints: each server takes them, and names with wildcards reach no further."""

import shlex

import pytest
from redis.asyncio import Redis

from reaper.operations.acl import Role, rules_of
from tests.faults.scene import KEYS, NAMESPACE
from tests.operator.conftest import run_command
from tests.operator.test_acl import PASSWORD, REAPER, _without_users, denials
from tests.support.servers import RedisServer
from workers.protocol.connection import commands_client
from workers.protocol.keys import group_keys

__all__ = ["_without_users"]

pytestmark = [pytest.mark.anyio, pytest.mark.contract]


async def test_names_with_wildcards_give_rights_on_themselves_alone() -> None:
    rules = rules_of(Role.PRODUCER, REAPER, [group_keys("a[b]?", "g")], [])
    assert rules.words[3] == r"~a\[b\]\?"


async def test_a_pattern_gives_rights_on_the_streams_that_it_finds_and_to_reapers_that_of_scanning() -> None:
    rules = {role: rules_of(role, REAPER, [group_keys("orders:*", "billing")], [NAMESPACE]) for role in Role}
    assert {"orders:*", "{orders:*}:lease:billing"} <= set(rules[Role.REAPER].keys)
    assert [role for role, one in rules.items() if "scan" in one.commands] == [Role.REAPER]
    assert "scan" not in rules_of(Role.REAPER, REAPER, [KEYS], [NAMESPACE]).commands


@pytest.mark.parametrize("role", Role)
async def test_what_an_address_asks_of_a_connection_is_allowed(client: Redis, server: RedisServer, role: Role) -> None:
    """With another database and a name, the user that `reaper acl` prints can connect."""
    await client.execute_command("ACL", "LOG", "RESET")
    where = f"127.0.0.1:{server.port}/1?client_name=ours"
    printed = await run_command(f"redis://{where}", "acl", role.value, "-o", "json", "--groups", "orders/billing")
    (rules,) = (one["rules"] for one in printed.data)
    await client.execute_command("ACL", "SETUSER", role.value, "on", f">{PASSWORD}", *rules)
    async with commands_client(f"redis://{role.value}:{PASSWORD}@{where}") as ours:
        await ours.ping()
    assert await denials(client) == []


async def test_rules_that_older_servers_reject_are_printed_as_comments() -> None:
    words = ("acl", "--groups", "orders/billing")
    answer = await run_command("redis://127.0.0.1:1/0", *words)
    expected = [f"# ACL SETUSER {role} +xnack" for role in ("worker", "reaper")]
    assert [line for line in answer.out.splitlines() if "xnack" in line] == expected
    data = (await run_command("redis://127.0.0.1:1/0", *words, "-o", "json")).data
    assert [one["role"] for one in data if "+xnack" in one["rules"]] == []
    assert [one["role"] for one in data if "+xnack" in one["from_redis_8_8"]] == ["worker", "reaper"]


@pytest.mark.contract
@pytest.mark.parametrize("mode", ["reaper", "embedded"])
async def test_a_server_accepts_every_line_that_is_printed(client: Redis, server: RedisServer, mode: str) -> None:
    answer = await run_command(server.url, "acl", "--recovery", mode, "--groups", 'orders/billing,m ä*l/sen"der')
    lines = [line for line in answer.out.splitlines() if not line.startswith("#")]
    assert lines
    for line in lines:
        assert await client.execute_command(*shlex.split(line)) == b"OK"


async def test_without_groups_nothing_can_be_said() -> None:
    answer = await run_command("redis://127.0.0.1:1/0", "acl", "worker")
    assert (answer.code, answer.err.startswith("error: cannot print rules: no groups are set.")) == (2, True)
