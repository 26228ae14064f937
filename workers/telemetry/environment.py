"""Reads OpenTelemetry's own variables.

- ``OTEL_EXPORTER_OTLP_ENDPOINT`` exports by OTLP/HTTP. Traces and metrics have one of their own, too.
- ``OTEL_TRACES_EXPORTER`` and ``OTEL_METRICS_EXPORTER`` choose ``otlp``, ``console`` or ``none``.
- ``OTEL_SDK_DISABLED`` turns telemetry off.
- ``OTEL_TRACES_SAMPLER`` decides about new traces.

The SDK reads its other variables itself, and warns about a value that it does not understand.
"""

import os

from workers.protocol.errors import ConfigurationError

OTLP, CONSOLE, NONE = "otlp", "console", "none"
SIGNALS = ("TRACES", "METRICS")


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
