"""Each mutant still fits: its text occurs once, and the new text can be loaded."""

import ast
from collections import Counter
from pathlib import Path

import pytest
from redis.asyncio import Redis

from tests.simulation.mutants.catalogue import ROOT, Mutant, load
from tests.simulation.mutants.near import near
from workers.protocol.scripts import put_together, script_text

MUTANTS = load()
LEAST = 40
SCRIPTS = ROOT / "workers/protocol/lua"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_it_still_fits(mutant: Mutant) -> None:
    for file, content in mutant.mutated(ROOT).items():
        assert content != (ROOT / file).read_text(encoding="utf-8")
        if file.endswith(".py"):
            ast.parse(content)
    for test in (*mutant.near, *near(edit.file for edit in mutant.edits)):
        file, _, name = test.partition("::")
        assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8"), test


def test_there_are_enough_and_none_is_there_twice() -> None:
    assert len(MUTANTS) >= LEAST
    assert [name for name, times in Counter(mutant.name for mutant in MUTANTS).items() if times > 1] == []
    assert [digest for digest, times in Counter(mutant.digest for mutant in MUTANTS).items() if times > 1] == []


@pytest.mark.anyio
async def test_the_server_takes_every_script_that_was_changed(client: Redis) -> None:
    for mutant in MUTANTS:
        changed = {file: content for file, content in mutant.mutated(ROOT).items() if file.endswith(".lua")}
        for file, changed_text in changed.items():
            content, part = changed_text, Path(file).stem
            folder = Path(file).parent.name
            if folder != "lua":  # a part of a shared text
                own = (ROOT / file).read_text(encoding="utf-8")
                content, part = script_text("workers.protocol", folder).replace(own, changed_text), folder
            whole, mark = (SCRIPTS / "recover.lua").read_text(encoding="utf-8"), f"--- @{part}\n"
            # All of a shared part that was changed, and what is used of the others: Lua takes 200 local names.
            script = put_together(whole.replace(mark, content + "\n") if mark in whole else content)
            assert await client.script_load(script), mutant.name
