"""What the environment asks of telemetry, by the variables that OpenTelemetry defines.

``OTEL_EXPORTER_OTLP_ENDPOINT`` (or the one of traces or metrics alone) exports by OTLP/HTTP; ``OTEL_TRACES_EXPORTER``
and ``OTEL_METRICS_EXPORTER`` choose ``otlp``, ``console`` or ``none``; ``OTEL_SDK_DISABLED`` turns all of it off;
``OTEL_TRACES_SAMPLER`` decides about new traces.
"""

import os

from workers.protocol.errors import ConfigurationError

OTLP, CONSOLE, NONE = "otlp", "console", "none"


def is_wanted(*, shows_metrics: bool = False) -> bool:
    """Tell whether the environment asks for telemetry, or something else shows the metrics."""
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return shows_metrics or exporter("TRACES") != NONE or exporter("METRICS") != NONE


def exporter(signal: str) -> str:
    """Return which exporter to use for TRACES or METRICS. Raises ConfigurationError."""
    variable = f"OTEL_{signal}_EXPORTER"
    chosen = os.environ.get(variable, "").strip().lower()
    if chosen and chosen not in (OTLP, CONSOLE, NONE):
        raise ConfigurationError(f"{variable}={chosen} is unknown: use otlp, console or none.")
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return chosen or (OTLP if any(os.environ.get(name) for name in endpoints) else NONE)
