"""Sets up telemetry for the command lines, if OpenTelemetry's own variables demand it. Libraries only use the API.

``OTEL_EXPORTER_OTLP_ENDPOINT``, or the endpoint of one signal, exports by OTLP/HTTP. ``OTEL_TRACES_EXPORTER`` and
``OTEL_METRICS_EXPORTER`` can be ``otlp`` or ``none``. ``OTEL_SDK_DISABLED`` turns telemetry off. The SDK and its
exporters read all other variables themselves.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from workers.protocol.address import without_logins
from workers.protocol.errors import ConfigurationError

GOODBYE_S = 2.0
"""How long the last exports may take at the end of a process."""


def exports(signal: str) -> bool:
    """Return whether to export TRACES or METRICS. Raises ConfigurationError."""
    variable = f"OTEL_{signal}_EXPORTER"
    chosen = os.environ.get(variable, "").strip().lower()
    if chosen not in ("", "otlp", "none"):
        raise ConfigurationError(f"{variable}={chosen} is not supported. Use otlp or none.")
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    is_disabled = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return not is_disabled and (chosen == "otlp" or (not chosen and any(map(os.environ.get, endpoints))))


@contextmanager
def exported(service: str, *, shows_metrics: bool = False) -> Iterator[None]:
    """Export spans and metrics while the block runs, if that is wanted. Raises ConfigurationError.

    With ``shows_metrics``, the health port shows the metrics, if the SDK is installed.
    """
    traces, measures = exports("TRACES"), exports("METRICS")
    if not (traces or measures or shows_metrics):
        yield
        return
    try:
        from workers.telemetry.sdk import set_up

        closes = set_up(service, traces=traces, measures=measures, shows_metrics=shows_metrics)
    except ImportError as error:
        if traces or measures:
            raise ConfigurationError(
                f"OTEL_… in the environment needs {error.name}, which is not installed. "
                "Run pip install '.[telemetry]' in your clone."
            ) from error
        closes = []  # /metrics answers that telemetry is off
    except ValueError as error:
        names = ", ".join(sorted(name for name in os.environ if name.startswith("OTEL_")))
        reason = without_logins(str(error)).rstrip(".")
        raise ConfigurationError(f"cannot set up telemetry: {reason}. Correct one of {names}.") from error
    try:
        yield
    finally:
        closing = threading.Thread(target=lambda: [close() for close in closes], name="last export", daemon=True)
        closing.start()
        closing.join(GOODBYE_S)
