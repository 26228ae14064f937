"""Where the system does not let a process have what it needs to begin, a sentence names the limit."""

import errno
import os
import subprocess
import sys

import pytest

from tests.operator.every import PAIR
from tests.support.processes import ROOT
from tests.support.servers import RedisServer
from workers.protocol.errors import UnreachableError
from workers.runtime.limits import limit_met

pytestmark = pytest.mark.anyio

FEW = "import resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({0}, {0})); from {1} import main; main()"
WORDS = [
    ("reaper.__main__", "run", *PAIR),
    ("reaper.__main__", "status", *PAIR),
    ("workers.__main__", "run", "tests.web.shop:worker"),
]


@pytest.mark.processes
@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(words[:2]))
@pytest.mark.parametrize("files", [7, 9, 10, 11, 12, 13])
def test_too_few_files_end_with_a_sentence_or_are_enough(
    server: RedisServer, files: int, words: tuple[str, ...]
) -> None:
    module, *typed = words
    environment = {**os.environ, "REAPER_REDIS_URL": server.url}
    # Imported before: libraries are files, too.
    code = "import " + module.partition(".")[0] + ".cli; " + FEW.format(files, module)
    process = subprocess.Popen(
        [sys.executable, "-c", code, *typed], cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr
    lines: list[str] = []
    while line := process.stderr.readline().decode():
        lines.append(line)
        if "works on" in line or "leadership acquired" in line:
            process.terminate()
            break
    process.communicate()
    said = "".join(lines)
    assert "Traceback" not in said.partition("error: this process")[0]  # what follows, a loop says that was never made
    assert process.returncode in (0, 1) or f"may not open more files ({files})" in said, said


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (OSError(errno.EMFILE, ""), "LimitNOFILE="),
        (OSError(errno.ENFILE, ""), "fs.file-max"),
        (OSError(errno.ENOMEM, ""), "MemoryMax="),
        (MemoryError(), "MemoryMax="),
        (RuntimeError("can't start new thread"), "TasksMax="),
    ],
)
def test_each_limit_is_named_also_where_it_is_met_by_somebody_below(error: Exception, named: str) -> None:
    outer = UnreachableError("no usable Redis")
    outer.__cause__ = error
    assert named in limit_met(error)
    assert limit_met(outer) == limit_met(error)


@pytest.mark.parametrize("error", [OSError(errno.ECONNREFUSED, ""), RuntimeError("x"), ValueError()])
def test_other_errors_tell_of_none(error: Exception) -> None:
    assert limit_met(error) == ""
