"""systemd reads the units without complaint, and lets them do little."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.assets import DEPLOY, program, unit

UNITS = ["reaper@.service", "worker@.service"]
ONCE = "reaper-ingest.service"
MOST_EXPOSED = 2.0
"""Of 10, as `systemd-analyze security` counts."""

each = pytest.mark.parametrize("name", [*UNITS, ONCE])
each_service = pytest.mark.parametrize("name", UNITS)


@each
def test_it_is_read_without_complaint(name: str, tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / name).read_text(encoding="utf-8")
    copy = tmp_path / name
    copy.write_text(re.sub(r"/opt/stream-reaper/bin/\w+", "/bin/true", text))  # verify asks for the program, too
    timers = [shutil.copy(DEPLOY / "systemd/reaper-ingest.timer", tmp_path)] if name == ONCE else []
    done = subprocess.run(
        [program("systemd-analyze", "systemd"), "verify", str(copy), *map(str, timers)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


@each
def test_it_is_hardly_exposed(name: str) -> None:
    done = subprocess.run(
        [
            program("systemd-analyze", "systemd"), "security", "--no-pager", "--offline=yes",
            f"--threshold={MOST_EXPOSED * 10:.0f}", str(DEPLOY / "systemd" / name),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-400:]


@each
def test_the_password_is_no_variable(name: str) -> None:
    settings = unit(name)
    (credential,) = settings["LoadCredential"]
    label, _, file = credential.partition(":")
    assert Path(file).parent == Path("/etc/stream-reaper")
    assert any(f"REDIS_URL_FILE=%d/{label} " in f"{line} " for line in settings["Environment"])


@each_service
def test_it_is_started_again_for_ever(name: str) -> None:
    settings = unit(name)
    asked = ("Type", "Restart", "StartLimitIntervalSec", "KillMode")
    assert [settings[key] for key in asked] == [["exec"], ["always"], ["0"], ["mixed"]]


def test_the_drop_in_for_tls_names_settings_and_what_is_loaded() -> None:
    lines = unit("tls.conf")
    loaded = {one.partition(":")[0] for one in lines["LoadCredential"]}
    variables = dict(word.split("=", 1) for line in lines["Environment"] for word in line.split())
    settings = {f"REAPER_{field.upper()}" for field in ("redis_ca_file", "redis_cert_file", "redis_key_file")}
    assert variables.keys() == settings
    assert {variables[key] for key in settings} == {f"%d/{label}" for label in loaded}


def test_both_are_hardened_alike() -> None:
    def hardening(name: str) -> set[str]:
        text = (DEPLOY / "systemd" / name).read_text(encoding="utf-8")
        return set(text[text.index("DynamicUser") : text.index("[Install]")].split("\n"))

    assert hardening(UNITS[0]) == hardening(UNITS[1])
