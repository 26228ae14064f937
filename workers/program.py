"""Finds the worker that a user's program defines, and says in one sentence why it cannot."""

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from workers.protocol.errors import ConfigurationError
from workers.runtime.settings_errors import did_you_mean
from workers.worker import Worker

PACKAGE = "workers"
DEFAULT_ATTRIBUTE = "worker"


def load_worker(target: str, folder: Path) -> Worker:
    """Import ``package.module:attribute`` with ``folder`` on the path, and return the worker there."""
    name, _, attribute = target.partition(":")
    attribute = attribute or DEFAULT_ATTRIBUTE
    if not all(part.isidentifier() for part in (*name.split("."), attribute)):
        raise ConfigurationError("invalid program: no module. Write package.module:worker, without '.py' or '/'.")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return _worker_in(_import(name, folder), attribute)


def _import(name: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name.split(".")[0] == PACKAGE:
            raise ConfigurationError(
                f"cannot import {name!r}: {PACKAGE!r} is the installed package. Rename your own, for example to 'jobs'."
            ) from error
        if name == missing or name.startswith(f"{missing}."):
            raise ConfigurationError(
                f"cannot import {missing!r}: it is neither in {folder} nor installed. Start `worker run` in the folder "
                "of the module, or install it."
            ) from error
        raise ConfigurationError(
            f"cannot import {name!r}: module {missing!r} is not installed ({_place(error)})."
        ) from error
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"cannot import {name!r}: {type(error).__name__}: {error} ({_place(error)})."
        ) from error


def _place(error: BaseException) -> str:
    """Return file and line where ``error`` came up: the last one outside the import machinery."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "place unknown"


def _worker_in(module: ModuleType, attribute: str) -> Worker:
    found = getattr(module, attribute, None)
    if isinstance(found, Worker):
        return found
    there = [name for name, value in vars(module).items() if isinstance(value, Worker)]
    if found is not None:
        raise ConfigurationError(f"{module.__name__}:{attribute} is a {type(found).__name__}. Name a Worker.")
    if there:
        raise ConfigurationError(f"{module.__name__!r} has no {attribute!r}{did_you_mean(attribute, there)}")
    raise ConfigurationError(
        f"{module.__name__!r} has no {attribute!r}, and no other worker. Add `{attribute} = Worker()` to it."
    )
