"""The check of plain English counts the four figures, and its list of allowed files only gets shorter."""

from pathlib import Path

import pytest

from docs import prose

SETTINGS = {
    "relative": 2, "actors": 3, "chained": 20, "long": 8, "page_words": 200, "longer_pages": [],
    "files": ["*.md", "*.py"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("sentence", "fault"),
    [
        ("What fails is retried.", "relative"),
        ("The log names the cause, and what fails is retried.", "relative"),
        ("It is kept for whoever asks for it.", "relative"),
        ("Jobs that nobody reads are reported.", "actors"),
        ("Jobs wait; workers read them.", "chained"),
        ("There is one rule: workers read jobs.", "chained"),
        (" ".join(["word"] * 31), "long"),
    ],
)
def test_a_fault_is_found(sentence: str, fault: str) -> None:
    assert prose.faults(sentence)[fault] == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "Entries that fail are retried.",
        "What fails?",
        "Run it at 10:30.",
        " ".join(["word"] * 30),
        "When it fails, wait.",
    ],
)
def test_plain_sentences_have_no_fault(sentence: str) -> None:
    assert not any(prose.faults(sentence).values())


def test_code_and_tables_and_headings_do_not_count() -> None:
    page = "# What fails\n\nIt is `a; b` here. See [what it is](what.md).\n\n| what | who |\n\n"
    page += "```sh\nwhat; fails\n```\n- one more item\n\n::: what.who\n    options: what; who\n"
    assert prose.sentences(page) == ["It is code here.", "See what it is.", "one more item"]


def test_docstrings_and_comments_are_prose_and_strings_are_not(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('"""The module here."""\nx = "what fails"  # the reason why\n', encoding="utf-8")
    assert prose.sentences(prose.prose_of(module)) == ["The module here.", "the reason why"]


def test_labels_of_docstrings_and_directives_are_no_prose(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    text = '"""Read it here.\n\nArgs:\n    path: Name of the file.\n\nRaises:\n    OSError: It is not there.\n"""'
    module.write_text(f"{text}\nx = 1  # type: ignore[arg-type]\n", encoding="utf-8")
    assert prose.sentences(prose.prose_of(module)) == ["Read it here.", "Name of the file.", "It is not there."]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project with one good and one bad page."""
    lines = [f"{name} = {value!r}" for name, value in SETTINGS.items()]
    (tmp_path / "pyproject.toml").write_text("[tool.prose]\n" + "\n".join(lines), encoding="utf-8")
    (tmp_path / "good.md").write_text("The leader recovers the entry.\n\n" * 10, encoding="utf-8")
    (tmp_path / "bad.md").write_text("What fails is retried.\n\n" * 10, encoding="utf-8")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    return tmp_path


def test_a_bad_page_is_named_with_its_worst_sentences(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prose.main([]) == 1
    assert capsys.readouterr().out.startswith("bad.md: relative 100.0, limit 2\n    What fails is retried.")
    (project / "bad.md").unlink()
    assert prose.main([]) == 0
    assert capsys.readouterr().out == "prose: 1 files are within the limits\n"


def test_a_long_page_is_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "good.md").write_text("The leader recovers the entry.\n\n" * 50, encoding="utf-8")
    assert prose.main([str(project / "good.md")]) == 1
    assert capsys.readouterr().out == "good.md: 250 words, limit 200\n"
