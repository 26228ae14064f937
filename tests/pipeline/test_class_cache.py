"""The class cache: who makes it, who uses it, and that nothing depends on it."""

import json
import os
import shutil
import sys
from pathlib import Path

import anyio
import pytest

from reaper.pipeline.spark import class_cache as module
from reaper.pipeline.spark.class_cache import (
    RehearsalError,
    class_cache,
    make_class_cache,
    recording_classes,
    using_classes,
)
from reaper.pipeline.spark.java import Java, describe, write_shim
from tests.docs.json_page import check
from tests.pipeline.test_java import install
from tests.support.java import java_of_the_extra
from tests.support.processes import Processes


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of the test's own."""
    folder = tmp_path / "cache of mine"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def java(folder: Path, version: str, script: str = "exit 1") -> Java:
    return describe(install(folder / version, version, script))


@pytest.mark.usefixtures("cache")
def test_java_takes_classes_from_the_cache_where_there_is_one(tmp_path: Path) -> None:
    new = java(tmp_path, "25.0.2")
    assert using_classes(new) == ""
    file = class_cache(new)
    file.write_bytes(b"classes")
    assert using_classes(new).startswith(f'"-XX:AOTCache={file}" ')
    assert recording_classes(file).startswith(f'"-XX:AOTCacheOutput={file}" ')


@pytest.mark.usefixtures("cache")
def test_an_older_java_or_one_of_unknown_version_has_none(tmp_path: Path) -> None:
    for runtime in (java(tmp_path, "24.0.1"), Java(tmp_path / "24.0.1", None)):
        class_cache(runtime).write_bytes(b"classes")
        assert using_classes(runtime) == ""


@pytest.mark.usefixtures("cache")
def test_every_java_and_every_spark_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = java(tmp_path, "25.0.1"), java(tmp_path, "25.0.2")
    files = {class_cache(one), class_cache(other)}
    monkeypatch.setattr(module, "version", lambda _: "5.0.0")
    files.add(class_cache(other))
    monkeypatch.setattr(sys, "prefix", "/another/environment")
    files.add(class_cache(other))
    assert len(files) == 4


@pytest.mark.usefixtures("cache")
def test_a_shim_has_the_cache_of_the_java_it_starts(tmp_path: Path) -> None:
    new = java(tmp_path, "25.0.2")
    shim = describe(write_shim(new))
    assert shim.home != new.home
    assert class_cache(shim) == class_cache(new)


@pytest.mark.usefixtures("cache")
def test_a_java_that_keeps_no_classes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(java(tmp_path, "21.0.8").home))
    with pytest.raises(RehearsalError, match=r"is Java 21, and only Java 25 and newer keep classes.*extra"):
        make_class_cache()


def test_a_rehearsal_that_fails_leaves_nothing_and_says_why(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = java(tmp_path, "25.0.2", "echo 'no more memory' >&2; exit 1")
    monkeypatch.setenv("JAVA_HOME", str(broken.home))
    with pytest.raises(RehearsalError, match="no class cache was made; the rehearsal's last words: "):
        make_class_cache()
    assert not list(cache.rglob("*.aot"))
    assert not list(cache.rglob("rehearsal-*"))


SESSION = """
import sys
from reaper.pipeline.spark.session import build_session
spark = build_session("local[1]", heap="500m", java_options=sys.argv[1])
print(spark.range(3).count(), "rows")
"""


@pytest.mark.processes
@pytest.mark.matrix
@pytest.mark.anyio
async def test_a_warm_up_makes_what_later_commands_take_their_classes_from(
    processes: Processes, cache: Path, tmp_path: Path
) -> None:
    env = {"JAVA_HOME": str(java_of_the_extra()), "XDG_CACHE_HOME": str(cache)}
    warm_up = processes.python("-m", "reaper", "pipeline", "warm-up", "--json", env=env)
    assert await warm_up.wait() == 0, warm_up.output
    made = json.loads(warm_up.output)
    check("reaper pipeline warm-up", made)
    file = Path(made["file"])
    size = (await anyio.Path(file).stat()).st_size
    assert made["megabytes"] == size // 1_000_000

    # Told to insist, Java ends where it cannot use the file.
    strict = processes.python("-c", SESSION, "-XX:AOTMode=on", env=env)
    assert await strict.wait() == 0, strict.output
    assert "3 rows" in strict.output

    # By another file in its place: Java may still be ending, and would crash if the one it has mapped were cut.
    cut = tmp_path / "cut.aot"
    shutil.copyfile(file, cut)
    os.truncate(cut, size // 2)
    await anyio.Path(cut).replace(file)
    refused = processes.python("-c", SESSION, "-XX:AOTMode=on", env=env)
    assert await refused.wait() != 0
    without = processes.python("-c", SESSION, "", env=env)
    assert await without.wait() == 0, without.output
    assert "3 rows" in without.output
