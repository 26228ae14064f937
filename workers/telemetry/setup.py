"""Sets telemetry up for the command lines, if OpenTelemetry's own variables ask for it. Libraries only use the API.

- ``OTEL_EXPORTER_OTLP_ENDPOINT`` exports by OTLP/HTTP. Traces and metrics have one of their own, too.
- ``OTEL_TRACES_EXPORTER`` and ``OTEL_METRICS_EXPORTER`` choose ``otlp``, ``console`` or ``none``.
- ``OTEL_SDK_DISABLED`` turns telemetry off.

The SDK reads its other variables itself, and warns about a value that it does not understand.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic

from workers.protocol.address import without_logins
from workers.protocol.errors import ConfigurationError
from workers.telemetry.names import CONSOLE, NONE, OTLP

SIGNALS = ("TRACES", "METRICS")
GOODBYE_S = 2.0
"""How long the last exports may take at the end of a process."""


def is_wanted(*, shows_metrics: bool = False) -> bool:
    """Tell whether the environment asks for telemetry, or something else shows the metrics."""
    if _value("OTEL_SDK_DISABLED").lower() == "true":
        return False
    return shows_metrics or any(exporter(signal) != NONE for signal in SIGNALS)


def exporter(signal: str) -> str:
    """Return which exporter to use for TRACES or METRICS. Raises ConfigurationError."""
    variable = f"OTEL_{signal}_EXPORTER"
    chosen = _value(variable).lower()
    if chosen and chosen not in (OTLP, CONSOLE, NONE):
        raise ConfigurationError(f"{variable}={chosen} is unknown. Use otlp, console or none.")
    return chosen or (OTLP if any(map(os.environ.get, _of_otlp("ENDPOINT", signal))) else NONE)


def _value(variable: str) -> str:
    return os.environ.get(variable, "").strip()


def _of_otlp(what: str, signal: str) -> tuple[str, str]:
    """Return the variables that set an option of an exporter. The one of the signal is stronger."""
    return f"OTEL_EXPORTER_OTLP_{signal}_{what}", f"OTEL_EXPORTER_OTLP_{what}"


@contextmanager
def exported(service: str, *, shows_metrics: bool = False) -> Iterator[None]:
    """Export spans and metrics while the block runs, if that is wanted. Raises ConfigurationError."""
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
        closes = telemetry_sdk.set_up(
            service, traces=exporter("TRACES"), measures=exporter("METRICS"), shows_metrics=shows_metrics
        )
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
