"""Sets telemetry up for the command lines, if the environment asks for it. Libraries only use the API."""

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from workers.protocol.address import without_logins
from workers.protocol.errors import ConfigurationError
from workers.telemetry.environment import is_wanted

GOODBYE_S = 2.0
"""How long the last exports may take at the end of a process."""


@contextmanager
def exported(service: str, *, shows_metrics: bool = False) -> Iterator[None]:
    """Export spans and metrics while the block runs, if that is wanted. ``shows_metrics``: ``/metrics`` is served.

    Raises ConfigurationError if the extra is missing or an exporter is unknown.
    """
    if not is_wanted(shows_metrics=shows_metrics):
        yield
        return
    try:
        from workers.telemetry import sdk as telemetry_sdk
    except ImportError as error:
        if not is_wanted():  # without a variable of OpenTelemetry, /metrics answers that telemetry is off
            yield
            return
        raise ConfigurationError(
            f"OTEL_… in the environment needs {error.name}, which is not installed. Run pip install '.[telemetry]' "
            "in your clone."
        ) from error
    except ValueError as error:
        raise _of_environment(error) from error
    try:
        closes = telemetry_sdk.set_up(service, shows_metrics=shows_metrics)
    except ValueError as error:
        raise _of_environment(error) from error
    try:
        yield
    finally:
        _in_bounded_time(closes)


def _of_environment(error: ValueError) -> ConfigurationError:
    """Return what to say of OpenTelemetry's own error, of a value in the environment which it may not name."""
    known = {name: value for name, value in sorted(os.environ.items()) if name.startswith("OTEL_") and value}
    words = set(re.findall(r"[^\s'\"]+", str(error)))
    meant = [name for name, value in known.items() if words & {name, value}]
    told = without_logins(str(error)).rstrip(".")
    return ConfigurationError(f"cannot set up telemetry: {told} ({', '.join(meant or known)}).")


def _in_bounded_time(closes: Sequence[Callable[[], object]]) -> None:
    """Export what is left, as far as the endpoint takes it in time."""
    threads = [threading.Thread(target=close, name="telemetry's end", daemon=True) for close in closes]
    deadline = monotonic() + GOODBYE_S
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))
