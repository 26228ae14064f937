"""The harness that runs tests on mutants: findings, and the page about them."""

from pathlib import Path

import pytest

from tests.simulation.mutants import page, pure, results
from tests.simulation.mutants.catalogue import HERE, Edit, Mutant
from tests.simulation.mutants.results import Result
from tests.simulation.mutants.tiers import WHOLE_S, Catch, Step, Tier, again, steps
from tests.simulation.mutants.tree import hash_of, mutated

EDIT = Edit("reaper/sum.py", "a + b", "a - b")
MUTANT = Mutant("subtracts", "sums", "A sum | is one.", (EDIT,), near=("tests/reaper/test_sum.py",))
CATCH = Catch("unit", "tests/reaper/test_sum.py::test_it_adds[6.2.14]", "assert -1 == 3", 1.4)
FAILS_ONCE = """
from pathlib import Path

def test_by_chance():
    place = Path(__file__).with_suffix(".ran")
    ran_before, _ = place.exists(), place.write_text("")
    assert ran_before
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one function, and one test of it."""
    plugin = (HERE / "first_failure.py").read_text(encoding="utf-8")
    files = {
        "reaper/__init__.py": "",
        "reaper/sum.py": "def add(a, b):\n    return a + b\n",
        "tests/reaper/test_sum.py": "from reaper.sum import add\n\ndef test_it_adds():\n    assert add(1, 2) == 3\n",
        "tests/simulation/mutants/first_failure.py": plugin,
        "workers/none.py": "",
    }
    for name, content in files.items():
        place = tmp_path / "repository" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(content, encoding="utf-8")
    return tmp_path / "repository"


@pytest.mark.matrix
def test_what_fails_on_a_mutant_has_found_it_and_passes_without_it(root: Path) -> None:
    [near, _] = steps(MUTANT, root, [Tier.UNIT])
    assert near.run(root, 0) is None
    with mutated(root, MUTANT) as copy:
        found = near.run(copy, 0)
        assert found is not None
        assert (found.tier, found.by, found.said) == (
            "unit",
            "tests/reaper/test_sum.py::test_it_adds",
            "assert -1 == 3",
        )
        once_more = again(found).run(copy, 0)
        assert once_more is not None
        assert once_more.by == found.by
    assert "a + b" in (root / EDIT.file).read_text(encoding="utf-8")


@pytest.mark.matrix
def test_so_it_is_in_a_whole_tier_which_several_processes_run(root: Path) -> None:
    whole = Step(Tier.UNIT, "unit", ("tests/reaper",), WHOLE_S)
    with mutated(root, MUTANT) as copy:
        found = whole.run(copy, 2)
    assert found is not None
    assert found.by == "tests/reaper/test_sum.py::test_it_adds"


@pytest.mark.matrix
def test_what_fails_by_chance_finds_nothing(root: Path) -> None:
    (root / "tests/reaper/test_chance.py").write_text(FAILS_ONCE, encoding="utf-8")
    assert Step(Tier.UNIT, "unit", ("tests/reaper",)).run(root, 0) is None


def test_tests_that_cannot_be_run_are_no_finding(root: Path) -> None:
    with pytest.raises(RuntimeError, match="pytest ended with"):
        Step(Tier.UNIT, "unit", ("tests/nowhere",)).run(root, 0)


def test_what_stands_still_is_found(root: Path) -> None:
    endless = root / "tests/reaper/test_endless.py"
    endless.write_text("import threading\n\ndef test_it():\n    threading.Event().wait()\n", encoding="utf-8")
    found = Step(Tier.UNIT, "unit", ("tests/reaper/test_endless.py",), at_most_s=5).run(root, 0)
    assert found is not None
    assert (found.by, found.said) == ("", "unit: no end after 5 s")


@pytest.mark.parametrize("text", ["a * b", "a"], ids=["not there", "there more than once"])
def test_a_mutant_that_does_not_fit_is_an_error(root: Path, text: str) -> None:
    mutant = Mutant("unfit", "sums", "", (Edit("reaper/sum.py", text, ""),))
    with pytest.raises(ValueError, match="not once"), mutated(root, mutant):
        pass


def test_the_hash_of_a_tree_is_that_of_product_and_tests(root: Path) -> None:
    before = hash_of(root)
    (root / "README.md").write_text("of no account", encoding="utf-8")
    assert hash_of(root) == before
    (root / "workers/none.py").write_text("pass", encoding="utf-8")
    assert hash_of(root) != before


def test_a_result_is_kept_until_the_mutant_is_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "FOLDER", tmp_path / "kept")
    result = Result("subtracts", MUTANT.digest, "tree", CATCH, ["scripts, near"], ended=True)
    assert results.known(MUTANT) is None
    result.save()
    assert results.known(MUTANT) == result
    other = Mutant("subtracts", "sums", "", (Edit("reaper/sum.py", "a + b", "b"),))
    assert results.known(other) is None


def test_the_page_names_what_found_a_mutant_and_marks_what_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pure, "PLACE", tmp_path / "none")
    mutants = [
        MUTANT,
        Mutant("survives", "sums", "Something.", (EDIT,)),
        Mutant("equal", "sums", "Nothing.", (EDIT,), harmless="It comes to the same."),
        Mutant("simulated", "others", "More.", (EDIT,)),
        Mutant("left", "others", "Less.", (EDIT,)),
    ]
    found = {
        "subtracts": Result("subtracts", "", "", CATCH),
        "survives": Result("survives", "", "", ended=True, alone="none"),
        "equal": Result("equal", "", "", ended=True),
        "simulated": Result("simulated", "", "", Catch("simulation", "seed 7", "I5: given up", 60.0), alone="seed 7"),
    }
    place = tmp_path / "page.md"
    page.write(mutants, found, place)
    lines = place.read_text(encoding="utf-8").splitlines()
    assert lines[lines.index("| subject | mutants | not found |") + 2 :] == [
        "| sums | 3 | `survives` (**survived**), `equal` (breaks nothing) |",
        "| others | 2 | `left` (not run yet) |",
    ]
    assert place.with_suffix(".csv").read_text(encoding="utf-8").splitlines() == [
        "name,tier,by,seconds,alone",
        "subtracts,unit,reaper/test_sum.py::test_it_adds,1,",
        "survives,ended,,,none",
        "equal,ended,,,",
        "simulated,simulation,seed 7: I5: given up,60,seed 7",
    ]


def test_what_mutmut_found_is_counted_by_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = """
    reaper.recovery.timers.xǁTimersǁarm__mutmut_1: killed
    reaper.recovery.timers.xǁTimersǁarm__mutmut_2: survived
    reaper.recovery.timers.xǁTimersǁkeep__mutmut_1: no tests
    workers.backoff.xǁBackoffǁdelay_ms__mutmut_1: timeout
"""
    assert pure.read(told) == {
        "reaper.recovery.timers": {"killed": 1, "survived": 1, "no tests": 1},
        "workers.backoff": {"timeout": 1},
    }
    monkeypatch.setattr(pure, "PLACE", tmp_path / "pure.json")
    pure.keep(told)
    assert [(score.module, score.changes, score.found) for score in pure.scores()] == [
        ("reaper.recovery.timers", 3, 1),
        ("workers.backoff", 1, 1),
    ]


def test_what_the_page_says_already_stays_where_nothing_newer_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pure, "PLACE", tmp_path / "none")
    place, mutants = tmp_path / "mutants.md", [MUTANT, Mutant("new", "sums", "Something.", (EDIT,))]
    seed = Catch("simulation", "seed 17", "I3: an earlier term writes", 12.0)
    found = {"subtracts": Result("subtracts", MUTANT.digest, "tree", CATCH), "new": Result("new", "", "tree", seed)}
    page.write(mutants, found, place)
    before = place.read_text(encoding="utf-8")
    page.write(mutants, {}, place)
    assert place.read_text(encoding="utf-8") == before
    page.write(mutants, {"new": Result("new", "", "tree", ended=True)}, place)
    assert "**survived**" in place.read_text(encoding="utf-8")
