"""What `reaper acl` gives is what the programs reach: their scripts, and of those the keys and the commands.

A script that gains a key has to describe it in its header (`tests/scripts/test_contract.py`), and rights follow from
headers; what is called must be what is described, which the tests of rights see (`tests/operator/test_acl.py`).
"""

import re
from collections.abc import Callable

import pytest

from reaper.operations import acl
from reaper.operations.acl import (
    OTHER_AGREEMENTS,
    Role,
    commands_of,
    keys_in_order,
    keys_of,
    roles_in,
    rules_of,
    scripts_of,
)
from tests.scripts.test_contract import FOLDERS, each_script, read
from tests.support.reach import scripts_reached
from workers.protocol.keys import group_keys, namespace_keys, stream_keys
from workers.protocol.messages import RecoveryMode
from workers.protocol.scripts import script_text

REAPER, EMBEDDED = RecoveryMode
LOOKS = [
    "reaper.cli.status", "reaper.cli.explain", "reaper.cli.doctor", "reaper.cli.replicas:replicas",
    "reaper.cli.dead_letters:list_", "reaper.cli.dead_letters:show_", "reaper.cli.watch:list_", "reaper.web.overview",
]  # fmt: skip
PROGRAMS = {
    (Role.PRODUCER, REAPER): (["workers.producer", "workers.sync_producer"], []),
    (Role.WORKER, REAPER): (["workers.process"], ["workers.embedded", "workers.upkeep"]),
    (Role.WORKER, EMBEDDED): (["workers.process"], []),
    (Role.REAPER, REAPER): (["reaper.process"], []),
    (Role.READ_ONLY, REAPER): (LOOKS, ["reaper.service"]),
    (Role.OPERATOR, REAPER): (
        [*LOOKS, "reaper.cli.groups", "reaper.cli.redrive", "reaper.cli.requeue", "reaper.cli.replicas",
         "reaper.cli.dead_letters", "reaper.cli.watch"],
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
def test_rights_cover_every_key_and_command_of_the_scripts_that_a_role_reaches(role: Role, mode: RecoveryMode) -> None:
    rules = rules_of(role, mode, [group_keys("orders", "billing")], [namespace_keys("reaper")])
    spared = {"del"} if (role, mode) == (Role.WORKER, REAPER) else set()  # only embedded workers remove a lease
    for script in scripts_of(role, mode):
        assert keys_of(*script) <= set(rules.keys)
        assert commands_of(*script) <= {*rules.commands, *rules.newer, *spared}


def test_a_script_that_gains_a_key_or_a_command_gives_rights_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [group_keys("orders", "billing")]
    before = rules_of(Role.WORKER, REAPER, pairs, [])
    grown = "-- KEYS[9] scheduled  {orders}:scheduled   sorted set\nlocal one = redis.call('ZMSCORE', KEYS[3])\n"
    monkeypatch.setattr(acl, "script_text", _grown(script_text, "extend", grown))
    _forget()
    try:
        after = rules_of(Role.WORKER, REAPER, pairs, [])
    finally:
        monkeypatch.undo()
        _forget()
    assert set(after.keys) - set(before.keys) == {"{orders}:scheduled"}
    assert set(after.commands) - set(before.commands) == {"zmscore"}


def _grown(text: Callable[[str, str], str], script: str, more: str) -> Callable[[str, str], str]:
    return lambda package, name: text(package, name) + (more if name == script else "")


def _forget() -> None:
    commands_of.cache_clear()
    keys_in_order.cache_clear()


def test_every_role_has_programs() -> None:
    assert {(role, mode) for mode in RecoveryMode for role in roles_in(mode)} == set(EVERYBODY)


@each_script
def test_every_key_that_a_header_describes_is_one_that_is_spelt_in_one_place(package: str, name: str) -> None:
    spelt = {*_values(group_keys("orders", "billing")), *_values(stream_keys("orders")), OTHER_AGREEMENTS}
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
