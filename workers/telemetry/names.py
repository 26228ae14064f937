"""Names of spans and metrics, and checks whether they are exported. It needs the OpenTelemetry API only."""

from opentelemetry import metrics, trace
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider
from opentelemetry.util.types import AttributeValue

SCOPE = "stream-reaper"
SEMCONV = "https://opentelemetry.io/schemas/1.44.0"

# ---- attributes: of the messaging conventions, and ours

SYSTEM = "messaging.system"
REDIS = "redis"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
GROUP = "messaging.consumer.group.name"
MESSAGE_ID = "messaging.message.id"
BATCH_COUNT = "messaging.batch.message_count"
CLIENT_ID = "messaging.client.id"
ERROR_TYPE = "error.type"
JOB_ID = "reaper.job.id"
ATTEMPT = "reaper.delivery"
GENERATION = "reaper.job.generation"
OUTCOME = "reaper.outcome"
"""The verdict on a delivery: ack, nack, retry, reject or hand_back."""
RECOVERY_OUTCOME = "reaper.recovery.outcome"
RECOVERY_MODE = "reaper.recovery.mode"
FENCING_TOKEN = "reaper.fencing_token"  # noqa: S105 - a number that grows, and no secret
IDLE_MS = "reaper.idle_ms"
LOSS = "reaper.loss"
"""The outcome of a delivery whose consumer or group a third party deleted, or ``group`` or ``consumer``."""
NAMESPACE = "reaper.namespace"
PATTERN = "reaper.pattern"
"""The pattern that found a group. With many groups it stands for stream and group."""
PROBLEM = "reaper.problem"

SEND, RECEIVE, PROCESS, RECOVER = "send", "receive", "process", "recover"
SETTLE = "settle"
"""Type of every operation that ends a delivery."""

CERTAIN, IN_DOUBT = "certain", "in_doubt"
LOST_GROUP, LOST_CONSUMER = "group", "consumer"

REJECTED = "rejected"
VISIBILITY_TIMEOUT = "visibility_timeout"

Attributes = dict[str, AttributeValue]


def common(operation: str, kind: str, stream: str, group: str = "") -> Attributes:
    """Return the attributes that every span and measurement has."""
    attributes: Attributes = {SYSTEM: REDIS, OPERATION: operation, OPERATION_TYPE: kind, DESTINATION: stream}
    return attributes | {GROUP: group} if group else attributes


# ---- whether they are exported


def is_tracing() -> bool:
    """Return whether spans are exported, because a program or the command line has set a tracer provider."""
    return not isinstance(trace.get_tracer_provider(), (ProxyTracerProvider, NoOpTracerProvider))


def is_measuring() -> bool:
    """Return whether metrics are exported."""
    provider = metrics.get_meter_provider()
    return not isinstance(provider, NoOpMeterProvider) and "Proxy" not in type(provider).__name__
