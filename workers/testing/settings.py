"""The settings that a worker has in a test: what its program says, and what the test says; never the environment."""

from typing import Any

from pydantic import ValidationError

from workers.protocol.errors import ConfigurationError
from workers.runtime.settings import Section
from workers.runtime.settings_errors import explain
from workers.settings import WorkerSettings
from workers.worker import Worker

UNSAID = {"stream": "jobs", "group": "tests"}
"""For workers that are told only when they are deployed."""


class _OnlyGiven(Section, WorkerSettings):
    """Settings that are read from the constructor alone."""


def settings_of(worker: Worker, **stronger: Any) -> WorkerSettings:
    """Return the settings of ``worker``, those of the test being stronger. Raises ConfigurationError.

    What the environment has said to a ``WorkerSettings`` that the program made itself cannot be told apart any more.
    """
    try:
        return _OnlyGiven(**(UNSAID | dict(worker.arguments) | stronger))
    except ValidationError as error:
        raise ConfigurationError(*explain(WorkerSettings, error, {})) from error
