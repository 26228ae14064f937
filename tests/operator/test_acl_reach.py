"""The rights of `reaper acl` are those that the programs use: the keys and commands of their scripts.

A script that gains a key has to describe it in its header (`tests/scripts/test_contract.py`), and the table of rights
must have it; what is called must be what is described, which the tests of rights see (`tests/operator/test_acl.py`).
"""

import re

import pytest

from reaper.operations.acl import Role, roles_in, rules_of
from tests.scripts.test_contract import FOLDERS, each_script, read
from tests.support.reach import scripts_reached
from tests.support.rights import DIRECT, commands_of, keys_in_order, keys_of, scripts_of
from workers.protocol.keys import group_keys, namespace_keys, stream_keys
from workers.protocol.messages import RecoveryMode

REAPER, EMBEDDED = RecoveryMode
LOOKS = [
    "reaper.cli.status", "reaper.cli.explain", "reaper.cli.doctor",
    "reaper.cli.dead_letters:list_", "reaper.cli.dead_letters:show_", "reaper.cli.watch:list_", "reaper.web.app",
]  # fmt: skip
PROGRAMS = {
    (Role.PRODUCER, REAPER): (["workers.producer", "workers.sync_producer"], []),
    (Role.WORKER, REAPER): (["workers.process"], ["workers.embedded", "workers.upkeep"]),
    (Role.WORKER, EMBEDDED): (["workers.process"], []),
    (Role.REAPER, REAPER): (["reaper.process"], []),
    (Role.READ_ONLY, REAPER): (LOOKS, ["reaper.service"]),
    (Role.OPERATOR, REAPER): (
        [*LOOKS, "reaper.cli.groups", "reaper.cli.ready_again", "reaper.cli.drain", "reaper.cli.dead_letters",
         "reaper.cli.watch"],
        ["reaper.service"],
    ),
}  # fmt: skip
OTHERS = (Role.PRODUCER, Role.READ_ONLY, Role.OPERATOR)
EVERYBODY = [*PROGRAMS, *((role, EMBEDDED) for role in OTHERS)]


@pytest.mark.parametrize(("role", "mode"), EVERYBODY, ids=str)
def test_a_role_has_the_scripts_that_its_programs_reach_and_no_others(role: Role, mode: RecoveryMode) -> None:
    entries, without = PROGRAMS.get((role, mode)) or PROGRAMS[role, REAPER]
    assert set(scripts_of(role, mode)) == scripts_reached(entries, without)


@pytest.mark.parametrize(("role", "mode"), EVERYBODY, ids=str)
def test_a_role_may_run_what_its_scripts_and_other_calls_need_and_nothing_else(role: Role, mode: RecoveryMode) -> None:
    rules = rules_of(role, mode, [group_keys("orders", "billing")], [namespace_keys("reaper")])
    commands = {"ping", "info", "time", "eval", "evalsha", "select", "client|setname", "cluster|slots"} | DIRECT[role]
    commands |= {"subscribe"} if (role, mode) == (Role.WORKER, EMBEDDED) else set()
    commands = commands.union(*(commands_of(*script) for script in scripts_of(role, mode)))
    commands -= {"get", "pttl"} if (role, mode) == (Role.WORKER, REAPER) else set()
    assert {*rules.commands, *(word[1:] for word in rules.newer)} == commands


@pytest.mark.parametrize(("role", "mode"), EVERYBODY, ids=str)
def test_a_role_may_use_the_keys_of_its_scripts_and_other_calls_and_no_others(role: Role, mode: RecoveryMode) -> None:
    rules = rules_of(role, mode, [group_keys("orders", "billing")], [namespace_keys("reaper")])
    looks = {*_values(group_keys("orders", "billing")), *_values(namespace_keys("reaper"))} - {"billing", "reaper"}
    looks |= {"{reaper-observe}:replicas", "{reaper-observe}:groups", "{reaper-observe}:drained"}
    of_calls = {Role.PRODUCER: {"orders"}, Role.WORKER: {"orders", "{orders}:retry:billing"}}
    assert set(rules.keys) == of_calls.get(role, looks).union(*(keys_of(*script) for script in scripts_of(role, mode)))


def test_every_role_has_programs() -> None:
    assert {(role, mode) for mode in RecoveryMode for role in roles_in(mode)} == set(EVERYBODY)


@each_script
def test_every_key_that_a_header_describes_is_one_that_is_spelt_in_one_place(package: str, name: str) -> None:
    spelt = {*_values(group_keys("orders", "billing")), *_values(stream_keys("orders"))}
    assert keys_of(package, name) <= spelt | set(_values(namespace_keys("reaper")))
    header, _ = read(package, name)
    shared = 7 if "as in keys.lua" in header else 0  # one line names eight keys
    assert len(keys_in_order(package, name)) == shared + len(re.findall(r"^-- KEYS\[", header, re.MULTILINE))


def _values(keys: object) -> list[str]:
    return [str(getattr(keys, name)) for name in type(keys).__dataclass_fields__]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["*", "prelude/*"])
def test_commands_are_called_by_their_literal_names_so_that_rights_can_be_read(name: str) -> None:
    files = [file for folder in FOLDERS.values() for file in folder.glob(f"{name}.lua")]
    assert files
    for file in files:
        code = re.sub(r"--.*$", "", file.read_text(), flags=re.MULTILINE)
        calls = re.findall(r"redis\.p?call\b(?:(?:\(|, )'[A-Z]+')?", code)
        assert [call for call in calls if "'" not in call] == [], file.name
