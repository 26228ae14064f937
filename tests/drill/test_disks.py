"""Disks that are full, or take nothing: a sentence that names the option, and no verdict about jobs."""

import errno
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from reaper.drill.disks import check_space, told_of_disks
from workers.protocol.errors import ConfigurationError


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_what_a_disk_does_not_take_is_told_by_the_option(number: int) -> None:
    why = os.strerror(number)
    with (
        pytest.raises(ConfigurationError, match=f"^--files kept cannot be written: {why}\\.$"),
        told_of_disks(Path("kept")),
    ):
        raise OSError(number, why)
    with pytest.raises(ConfigurationError, match=r"^the folder for temporary files \(TMPDIR"), told_of_disks(None):
        raise OSError(number, why)


def test_no_folder_for_temporary_files_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "gone")])
    with pytest.raises(ConfigurationError, match="No usable temporary directory"), told_of_disks(None):
        tempfile.mkdtemp()


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(ConnectionResetError), told_of_disks(None):
        raise ConnectionResetError(errno.ECONNRESET, "reset")


def test_a_full_disk_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_space(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4_096))
    with pytest.raises(OSError, match="No space left"):
        check_space(tmp_path)
