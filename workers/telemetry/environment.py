"""What the environment asks of telemetry, by the variables that OpenTelemetry defines.

``OTEL_EXPORTER_OTLP_ENDPOINT`` (or the one of traces or metrics alone) exports by OTLP/HTTP; ``OTEL_TRACES_EXPORTER``
and ``OTEL_METRICS_EXPORTER`` choose ``otlp``, ``console`` or ``none``; ``OTEL_SDK_DISABLED`` turns all of it off;
``OTEL_TRACES_SAMPLER`` decides about new traces.

Values without sense are left to OpenTelemetry, which goes on by its defaults; but it may do so without a word, or with
one that names no variable. So they are told here (`doubts`).
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import on_one_line

OTLP, CONSOLE, NONE = "otlp", "console", "none"
SIGNALS = ("TRACES", "METRICS")
SAMPLERS = (
    "always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off",
    "parentbased_traceidratio",
)  # fmt: skip
"""Those that the SDK knows by name."""
RATIO = "traceidratio"
PROTOCOL = "http/protobuf"
COMPRESSIONS = ("none", "gzip", "deflate")
_OF_METRICS = {
    "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": ("cumulative", "delta", "lowmemory"),
    "OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION": (
        "explicit_bucket_histogram", "base2_exponential_bucket_histogram",
    ),
}  # fmt: skip


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
        raise ConfigurationError(f"{variable}={chosen} is unknown: use otlp, console or none.")
    return chosen or (OTLP if any(map(os.environ.get, _of_otlp("ENDPOINT", signal))) else NONE)


def doubts() -> list[str]:
    """Return a sentence for each variable that counts for nothing as it is, or leads nowhere.

    It names the variable. Values that may be secrets are not quoted.
    """
    found = [*_of_switch(), *(_of_sampler() if exporter("TRACES") != NONE else ()), *_of_numbers(), *_of_attributes()]
    for signal in SIGNALS:
        if exporter(signal) == OTLP:
            found += _of_exporter(signal)
    return list(dict.fromkeys(found))  # a variable for both signals is told once


def _value(variable: str) -> str:
    return os.environ.get(variable, "").strip()


def _of_otlp(what: str, signal: str) -> tuple[str, str]:
    """Return the variables that say so of an exporter: the one of the signal is the stronger one."""
    return f"OTEL_EXPORTER_OTLP_{signal}_{what}", f"OTEL_EXPORTER_OTLP_{what}"


def _said(variable: str) -> str:
    value = _value(variable)
    return variable if "@" in value else f"{variable}={on_one_line(value)}"  # an address may hold a password


def _of_switch() -> Iterator[str]:
    if _value("OTEL_SDK_DISABLED").lower() not in ("", "true", "false"):
        yield f"{_said('OTEL_SDK_DISABLED')} turns nothing off: only true does."


def _of_sampler() -> Iterator[str]:
    name, argument = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
    sampler = os.environ.get(name, "").lower()  # as it is: the SDK, too, takes blanks for a part of it
    if sampler and sampler not in SAMPLERS:
        yield f"{_said(name)} is unknown, so all new traces are sampled: use one of {', '.join(SAMPLERS)}."
    elif not sampler.endswith(RATIO):
        if _value(argument):
            yield f"{_said(argument)} counts for nothing: it is for {name}={RATIO} or parentbased_{RATIO}."
    elif not _is_between(_value(argument), 0, 1):
        yield f"{_said(argument)} is no number from 0 to 1, so all new traces are sampled: {name} needs one."


def _of_exporter(signal: str) -> Iterator[str]:
    checks: tuple[tuple[str, Callable[[str], bool], str], ...] = (
        ("ENDPOINT", _is_endpoint, "is no address that can be exported to: write it as http://collector:4318."),
        ("PROTOCOL", lambda value: value == PROTOCOL, f"is not spoken here: it is exported by {PROTOCOL} (port 4318)."),
        ("TIMEOUT", _is_positive, "is no number of seconds: write it as 10."),
        ("COMPRESSION", lambda value: value.lower() in COMPRESSIONS, f"is unknown: use {', '.join(COMPRESSIONS)}."),
        ("CERTIFICATE", _is_readable, "cannot be read: nothing can be exported."),
        ("CLIENT_CERTIFICATE", _is_readable, "cannot be read: nothing can be exported."),
        ("CLIENT_KEY", _is_readable, "cannot be read: nothing can be exported."),
    )
    for what, is_good, why in checks:
        variable = _first_set(_of_otlp(what, signal))
        if variable and not is_good(_value(variable)):
            yield f"{_said(variable)} {why}"
    for variable, known in _OF_METRICS.items() if signal == "METRICS" else ():
        if _value(variable) and _value(variable).lower() not in known:
            yield f"{_said(variable)} is unknown: use {', '.join(known)}."
    headers = _first_set(_of_otlp("HEADERS", signal))
    if headers and not all("=" in pair for pair in _pairs(headers)):
        yield f"{headers} holds what is no name=value pair, which is left out: separate pairs by commas."


def _of_numbers() -> Iterator[str]:
    for variable, needed in (
        ("OTEL_METRIC_EXPORT_INTERVAL", exporter("METRICS") != NONE),
        ("OTEL_METRIC_EXPORT_TIMEOUT", exporter("METRICS") != NONE),
        ("OTEL_BSP_EXPORT_TIMEOUT", exporter("TRACES") != NONE),
    ):
        if needed and _value(variable) and not _is_positive(_value(variable)):
            yield f"{_said(variable)} is no number of milliseconds: write it as 30000."


def _of_attributes() -> Iterator[str]:
    if not all("=" in pair for pair in _pairs("OTEL_RESOURCE_ATTRIBUTES")):
        yield (
            f"{_said('OTEL_RESOURCE_ATTRIBUTES')} holds what is no name=value pair, which is left out: separate pairs "
            "by commas."
        )


def _first_set(variables: tuple[str, ...]) -> str | None:
    return next((name for name in variables if os.environ.get(name)), None)


def _pairs(variable: str) -> list[str]:
    return [pair for pair in _value(variable).split(",") if pair.strip()]


def _is_endpoint(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is none
        return False


def _is_between(value: str, least: float, most: float) -> bool:
    try:
        return least <= float(value) <= most
    except ValueError:
        return False


def _is_positive(value: str) -> bool:
    return _is_between(value, 1e-9, 1e9)


def _is_readable(value: str) -> bool:
    try:
        with Path(value).open("rb"):
            return True
    except (OSError, ValueError):
        return False
