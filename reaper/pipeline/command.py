"""What all commands of the pipeline share: their options, a session, and how results and errors are told."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, is_dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from reaper.pipeline.progress import ProgressLine
from reaper.pipeline.settings import PipelineSettings
from reaper.pipeline.spark.failures import reason_from_outside
from reaper.pipeline.storage import LakeError, is_of_store
from workers.protocol.errors import ConfigurationError
from workers.runtime.entrance import INTERRUPTED_EXIT
from workers.runtime.options import errors_as_sentences, json_flag, settings_options
from workers.runtime.printing import show, show_json
from workers.runtime.settings import load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkFailedError(ConfigurationError):
    """Spark could not do what it was asked for, and nothing is wrong with that. The message says why."""


Handler = Callable[[int, object], None]
"""Of a signal."""
LAKE = ("lake",)
SPARK = ("master", "remote", "heap")
"""Settings that most commands have flags for."""
_LAKE_IN_USE = ContextVar("_LAKE_IN_USE", default="")


def pipeline_options(*names: str) -> Callable[[Any], Any]:
    """Add ``--config``, ``--json`` and one flag for each of the settings ``names``."""

    def decorate(command: Any) -> Any:
        others = [name for name in PipelineSettings.model_fields if name not in names]
        machine = json_flag("Print JSON, and no progress.")
        return settings_options(PipelineSettings, exclude=others)(machine(command))

    return decorate


def settings_of(flags: Mapping[str, Any], file: Path | None) -> PipelineSettings:
    """Return a command's settings. Errors of its lake name it from now on. Raises ConfigurationError."""
    settings = load_settings(PipelineSettings, flags=flags, file=file)
    _LAKE_IN_USE.set(settings.lake)
    return settings


@contextmanager
def sentences() -> Iterator[None]:
    """Print our own errors, and those of what lakes lie in, as sentences, and exit with 2.

    One of them is that the extra is missing.
    """
    with _as_before(signal.SIGINT, signal.SIGTERM), errors_as_sentences(), _told_of_store(), _told_of_spark():
        missing = [name for name in ("pyspark", "pyarrow", "deltalake") if find_spec(name) is None]
        if missing:
            raise ConfigurationError(
                f"the pipeline needs {' and '.join(missing)}: run pip install '.[spark]' in your clone "
                "('.[spark,jre]' where there is no Java)."
            )
        yield


@contextmanager
def _told_of_store() -> Iterator[None]:
    before = _LAKE_IN_USE.set("")
    try:
        yield
    except Exception as error:
        if not is_of_store(error):
            raise
        raise LakeError.of(_LAKE_IN_USE.get(), error) from error
    finally:
        _LAKE_IN_USE.reset(before)


@contextmanager
def _told_of_spark() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if reason := reason_from_outside(error):
            raise SparkFailedError(f"{reason}.") from error
        raise


@contextmanager
def ended_in_order() -> Iterator[None]:
    """Have SIGTERM and SIGHUP do what Ctrl-C does, for who has something to put away; who ignores them still does."""
    ends = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    with _as_before(*ends):
        if _is_main():
            for number in ends:
                signal.signal(number, _interrupt)
        yield


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do what Ctrl-C does now; shells have what runs in the background ignore that one, which says nothing of these."""
    interrupted = signal.getsignal(signal.SIGINT)
    if not callable(interrupted):
        raise KeyboardInterrupt
    interrupted(number, frame)


@contextmanager
def _as_before(*signals: signal.Signals) -> Iterator[None]:
    """Give the signals back as they were."""
    if not _is_main():
        yield
        return
    handlers = [(number, handler) for number in signals if (handler := signal.getsignal(number)) is not None]
    try:
        yield
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)


def open_session(settings: PipelineSettings, line: ProgressLine, interrupted: Handler | None = None) -> "SparkSession":
    """Start or reach Spark as the settings say; see `interruptible`."""
    from reaper.pipeline.spark.session import build_session

    line.show("starting Spark …")
    master, remote = settings.master or None, settings.remote or None
    return interruptible(
        lambda: build_session(master, remote, "stream-reaper pipeline", settings.heap), interrupted or leave_at_once
    )


def interruptible(build: "Callable[[], SparkSession]", interrupted: Handler) -> "SparkSession":
    """Build a session, and have Ctrl-C do from now on what ``interrupted`` does.

    In the main thread, PySpark would set a handler of its own, which cancels what runs, and prints errors in its
    course. And where Python goes on while Java is starting, Java is left behind for good: it finds nobody to tell its
    port, and waits.
    """
    if not _is_main():
        return build()
    signal.signal(signal.SIGINT, interrupted)
    with ThreadPoolExecutor(1) as beside:
        return beside.submit(build).result()


def leave_at_once(_number: int, _frame: object) -> None:
    """End the process: Java ends with it, and a lake is left as after any crash, which is to say in order."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED_EXIT)


def leave_in_order(_number: int, _frame: object) -> None:
    """Raise KeyboardInterrupt, for who has something to put away; what py4j says of it is nobody's concern."""
    logging.disable()
    raise KeyboardInterrupt


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def show_result(result: Any, lines: Sequence[str], *, machine: bool) -> None:
    """Print a result as lines for people, or as one JSON document."""
    if machine:
        show_json(_plain(result))
    else:
        show(*lines)


def _plain(result: Any) -> Any:
    if isinstance(result, list):
        return [_plain(item) for item in result]
    return asdict(result) if is_dataclass(result) and not isinstance(result, type) else result
