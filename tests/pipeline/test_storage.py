"""If a lake cannot be read or written, one sentence gives the cause, without traceback, colours or foreign stacks."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from pyarrow import ArrowInvalid

from reaper.cli.main import main
from reaper.pipeline.lake.delta import LakeTable
from reaper.pipeline.lake.layout import Layout
from reaper.pipeline.lake.tables import create_tables, lake_at
from reaper.pipeline.storage import is_of_store, reason_of_store
from workers.runtime.options import USAGE_EXIT

TREE = (
    "Generic S3 error\n"
    "  \x1b[31m↳\x1b[0m Error performing list request\n"
    "   \x1b[31m↳\x1b[0m tcp connect error\n"
    "    \x1b[31m↳\x1b[0m Connection refused (os error 111)"
)
NO_BUCKET = (
    "Generic S3 error\n ↳ <Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message>"
)
STACK = "Kernel error: Json error: Truncated\n   0: <unknown>\n   1: <unknown>\n      at ./nptl/pthread_create.c"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(TREE), "Generic S3 error: Connection refused (os error 111)"),
        (OSError(NO_BUCKET), "NoSuchBucket: The specified bucket does not exist"),
        (DeltaError(STACK), "Kernel error: Json error: Truncated"),
        (CommitFailedError("in between"), "in between"),
        (ArrowInvalid(""), "ArrowInvalid"),
        (PermissionError(errno.EACCES, "Permission denied", "/lake"), "Permission denied: /lake"),
        (OSError("x" * 400), "x" * 300 + "…"),
    ],
)
def test_a_failure_of_what_a_lake_lies_in_is_one_line(error: Exception, reason: str) -> None:
    assert is_of_store(error)
    assert reason_of_store(error) == reason


def test_what_is_wrong_with_us_is_no_failure_of_a_lake() -> None:
    assert not any(map(is_of_store, (KeyError("x"), ValueError("x"), BrokenPipeError())))


@pytest.fixture
def torn(tmp_path: Path) -> Layout:
    """A lake whose log ends within a commit."""
    layout = lake_at(tmp_path / "torn")
    create_tables(layout)
    Path(layout.table("events"), "_delta_log", f"{1:020}.json").write_text("{")
    return layout


Where = Callable[[Layout, pytest.MonkeyPatch], str]


def _of_nobody(_: Layout, monkeypatch: pytest.MonkeyPatch) -> str:
    variables = {"ENDPOINT_URL": "http://127.0.0.1:1", "ALLOW_HTTP": "true", "REGION": "x", "ACCESS_KEY_ID": "x"}
    for name, value in {**variables, "SECRET_ACCESS_KEY": "x", "MAX_ATTEMPTS": "1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    return "s3://bucket/lake"


@pytest.mark.parametrize(
    ("words", "where", "said"),
    [
        (("ingest",), lambda torn, _: torn.root, "Json error"),
        (("trim", "--lake-state", "state"), _of_nobody, "Connection refused"),
        (("trim",), lambda torn, _: f"{torn.root}/none", "there is no lake at"),
    ],
)
def test_a_command_says_so_and_ends_with_the_code_for_what_is_not_possible(
    torn: Layout, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], where: Where, said: str
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    result = CliRunner().invoke(main, ["pipeline", *words, "--lake", where(torn, monkeypatch)])
    assert (result.exit_code, len(result.stderr.splitlines())) == (USAGE_EXIT, 1), result.output
    assert said in result.stderr
    assert where(torn, monkeypatch) in result.stderr
    assert ("AWS_ENDPOINT_URL" in result.stderr) == (where is _of_nobody)
    assert not (Path(torn.root) / "none").exists()


def test_a_folder_that_cannot_be_made_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    (tmp_path / "file").write_text("")
    ingest = ["pipeline", "ingest", "--available-now", "--lake", str(tmp_path / "file" / "lake")]
    result = CliRunner().invoke(main, ingest)
    assert result.exit_code == USAGE_EXIT
    assert result.stderr.startswith(
        f"error: the lake {tmp_path / 'file' / 'lake'} cannot be read or written: Not a directory: "
    )


@pytest.mark.parametrize("method", ["is_deltatable", "get_add_actions", "vacuum", "create_write_transaction"])
def test_a_panic_of_deltalake_is_an_error_as_others_are(
    torn: Layout, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Rust code raises it as no Exception, so code that expects an error would not see it."""

    class PanicException(BaseException):
        pass

    def panic(*_: object, **__: object) -> None:
        raise PanicException("called `Result::unwrap()` on an `Err` value")

    def use() -> None:
        LakeTable.is_at(torn.root)
        table = LakeTable(torn.table("dead_letters"))
        table.files()
        table.install_fence(1)
        table.clean()

    use()
    monkeypatch.setattr(DeltaTable, method, panic)
    with pytest.raises(DeltaError, match=r"^deltalake gave up: called `Result::unwrap"):
        use()
