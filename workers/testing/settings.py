"""Settings of a worker in a test: those of its program and of the test, never of the environment."""

from typing import Any

from pydantic import ValidationError

from workers.protocol.errors import ConfigurationError
from workers.runtime.settings import Section
from workers.runtime.settings_errors import explain
from workers.settings import WorkerSettings
from workers.worker import Worker

UNSAID = {"stream": "jobs", "group": "tests"}
"""For workers whose stream and group are set at deployment."""


class _OnlyGiven(Section, WorkerSettings):
    """Settings that are read from the constructor alone."""


def settings_of(worker: Worker, **stronger: Any) -> WorkerSettings:
    """Return the settings of ``worker``. Those of the test are stronger. Raises ConfigurationError.

    A ``WorkerSettings`` that the program made itself can contain values of the environment.
    """
    try:
        return _OnlyGiven(**(UNSAID | dict(worker.arguments) | stronger))
    except ValidationError as error:
        raise ConfigurationError(*explain(WorkerSettings, error, {})) from error
