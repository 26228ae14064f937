import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers import Worker
from workers.program import load_worker
from workers.protocol.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _modules_as_before() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    file = folder / f"{name}.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


PROGRAM = "from workers import Worker\nworker = Worker('orders', 'billing')\nother = Worker('orders', 'audit')\n"


@pytest.mark.parametrize(
    ("target", "group"),
    [("tasks_of_test", "billing"), ("tasks_of_test:worker", "billing"), ("tasks_of_test:other", "audit")],
)
def test_a_worker_is_found_by_module_and_name(tmp_path: Path, target: str, group: str) -> None:
    write(tmp_path, "tasks_of_test", PROGRAM)

    worker = load_worker(target, tmp_path)

    assert isinstance(worker, Worker)
    assert worker.settings.group == group


@pytest.mark.parametrize(
    ("target", "text", "sentence"),
    [
        ("program.py", PROGRAM, "cannot import 'program.py': ModuleNotFoundError"),
        ("folder/program", PROGRAM, "does not name a worker. Write package.module:worker"),
        (":worker", PROGRAM, "cannot import ''.* Write package.module:worker"),
        (".program", PROGRAM, "cannot import '.program'.* Write package.module:worker"),
        ("not_there", PROGRAM, "cannot import 'not_there'"),
        ("program_of_test.inner", PROGRAM, "cannot import"),
        ("program_of_test:wroker", PROGRAM, "Did you mean 'worker'"),
        ("program_of_test:Worker", PROGRAM, "has no worker 'Worker'. Did you mean 'worker'"),
        ("program_of_test", "x = 1\n", r"Add `worker = Worker\(\)`"),
        ("program_of_test", "import not_there_either\n", "No module named 'not_there_either'.*line 1"),
        ("program_of_test", "\n1 / 0\n", "cannot import 'program_of_test': ZeroDivisionError.*line 2"),
        ("program_of_test", "\nimport sys; sys.exit()\n", "cannot import 'program_of_test': SystemExit.*line 2"),
        ("program_of_test", "def broken(:\n", "SyntaxError.*line 1"),
        (
            "program_of_test",
            PROGRAM + "@worker.handler\ndef run(job):\n    yield\n",
            "^run cannot be .*a generator function",
        ),
    ],
)
def test_a_broken_program_is_reported_in_a_sentence(tmp_path: Path, target: str, text: str, sentence: str) -> None:
    write(tmp_path, "program_of_test", text)

    with pytest.raises(ConfigurationError, match=sentence):
        load_worker(target, tmp_path)


def test_a_folder_of_the_users_own_with_our_name_is_noticed(tmp_path: Path) -> None:
    write(tmp_path / "workers", "jobs", PROGRAM)

    with pytest.raises(ConfigurationError, match="Rename your own"):
        load_worker("workers.jobs:worker", tmp_path)


def test_a_program_beside_such_a_folder_still_runs(tmp_path: Path) -> None:
    write(tmp_path / "workers", "jobs", PROGRAM)
    write(tmp_path, "tasks_of_test", PROGRAM)

    assert load_worker("tasks_of_test", tmp_path).settings.group == "billing"
