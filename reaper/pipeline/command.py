"""What all commands of the pipeline share: their options, a session, and how results and errors are told."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from reaper.pipeline.progress import ProgressLine
from reaper.pipeline.settings import PipelineSettings
from workers.protocol.errors import ConfigurationError
from workers.runtime.options import errors_as_sentences, settings_options
from workers.runtime.printing import show, show_json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAKE = ("lake",)
SPARK = ("master", "remote", "heap")
"""Settings that most commands have flags for."""


def pipeline_options(*names: str) -> Callable[[Any], Any]:
    """Add ``--config``, ``--json`` and one flag for each of the settings ``names``."""

    def decorate(command: Any) -> Any:
        others = [name for name in PipelineSettings.model_fields if name not in names]
        machine = click.option("--json", "machine", is_flag=True, help="Print JSON, and no progress.")
        return settings_options(PipelineSettings, exclude=others)(machine(command))

    return decorate


@contextmanager
def sentences() -> Iterator[None]:
    """Print our own errors as sentences and exit with 2; one of them is that the extra is missing."""
    with errors_as_sentences():
        missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
        if missing:
            raise ConfigurationError(
                f"the pipeline needs {' and '.join(missing)}: pip install 'stream-reaper[spark]' "
                "(and 'stream-reaper[jre]' where there is no Java)."
            )
        yield


def open_session(settings: PipelineSettings, line: ProgressLine) -> "SparkSession":
    """Start or reach Spark as the settings say."""
    from reaper.pipeline.spark.session import build_session

    line.show("starting Spark …")
    return build_session(settings.master or None, settings.remote or None, "stream-reaper pipeline", settings.heap)


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
