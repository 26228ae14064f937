"""Finds the worker that a user's program defines."""

import importlib
import sys
import traceback
from pathlib import Path

from workers.protocol.errors import ConfigurationError
from workers.runtime.settings_errors import did_you_mean
from workers.worker import Worker

DEFAULT_ATTRIBUTE = "worker"


def load_worker(target: str, folder: Path) -> Worker:
    """Return the worker ``package.module:attribute``, with ``folder`` on the path. Raises ConfigurationError."""
    name, _, attribute = target.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    if not (name + attribute).replace(".", "").isidentifier():  # perhaps an address with a password: not quoted
        raise ConfigurationError("the argument does not name a worker. Write package.module:worker.")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(name)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        advice = "Write package.module:worker, and start `worker run` in the folder of the package."
        if name.startswith("workers."):
            advice = "'workers' is the installed package. Rename your own, for example to 'jobs'."
        raise ConfigurationError(
            f"cannot import {name!r}: {type(error).__name__}: {error}{_place(error)}. {advice}"
        ) from error
    found = getattr(module, attribute, None)
    if not isinstance(found, Worker):
        workers = [name for name, value in vars(module).items() if isinstance(value, Worker)]
        hint = did_you_mean(attribute, workers) if workers else f". Add `{attribute} = Worker()` to it."
        raise ConfigurationError(f"{name!r} has no worker {attribute!r}{hint}")
    return found


def _place(error: BaseException) -> str:
    """Return the last file and line of the program in the traceback of ``error``, or ''."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames[-1].filename != __file__ else ""
