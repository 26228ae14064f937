"""Converts new jobs from the form of programs to the form of the stream. Rejects invalid jobs."""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workers.protocol.calls.enqueueing import PackedJob
from workers.protocol.errors import InvalidJobError
from workers.protocol.messages import (
    FIELD_TIMEOUT_MS,
    FIELD_VISIBILITY_MS,
    MAX_JOB_ID_BYTES,
    RESERVED_PREFIX,
    is_job_id,
)
from workers.runtime.settings import Duration, duration_in_ms

Word = str | bytes | int | float
Fields = Mapping[str, Any] | Mapping[bytes, Any] | Iterable[tuple[Word, Word]]
"""Values are words. Their type is Any, because mypy would reject ``{"order": 17, "customer": "Ada"}`` as a mapping to
objects."""

DEFAULT_MAX_BYTES = 1_048_576
MAX_FIELDS = 3_400
"""The most fields of a job, because a copy can have no more (``MAX_WORDS`` in ``lua/prelude``)."""


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job for `Producer.enqueue_many`. Its attributes are the arguments of `Producer.enqueue`."""

    fields: Fields
    job_id: str | bytes | None = None
    delay: Duration | None = None
    visibility_timeout: Duration | None = None
    timeout: Duration | None = None


def encode_job(job: NewJob, stream: str, max_bytes: int = DEFAULT_MAX_BYTES) -> PackedJob:
    """Return ``job`` in the form in which it is sent to ``stream``. Raises InvalidJobError."""
    words = _encode_fields(job.fields)
    if job.visibility_timeout is not None:
        words += (FIELD_VISIBILITY_MS, b"%d" % _duration_ms("visibility_timeout", job.visibility_timeout, 0.001))
    if job.timeout is not None:
        words += (FIELD_TIMEOUT_MS, b"%d" % _duration_ms("timeout", job.timeout, 0.001))
    chosen = job.job_id is not None
    job_id = _encode_job_id(job.job_id) if job.job_id is not None else uuid.uuid4().hex.encode()
    size = sum(map(len, words))
    if size > max_bytes:
        raise InvalidJobError(
            f"the job has {size} bytes, and {stream!r} takes at most {max_bytes}. Store large data elsewhere and "
            "enqueue a reference, or raise max_bytes."
        )
    return PackedJob(job_id, chosen, _duration_ms("delay", job.delay or 0), words, size)


def _encode_fields(fields: Fields) -> list[bytes]:
    words: list[bytes] = []
    given: Iterable[tuple[Word, Word]] = fields.items() if isinstance(fields, Mapping) else fields
    try:
        pairs = [(name, value) for name, value in given]
    except (TypeError, ValueError) as error:
        raise InvalidJobError(f"{fields!r:.100} is not a job. Give a mapping or pairs.") from error
    for name, value in pairs:
        encoded = _encode_word(name)
        if encoded.startswith(RESERVED_PREFIX):
            raise InvalidJobError(
                f"field {name!r} cannot be enqueued: names that begin with 'reaper.' are reserved. Rename it, or use "
                "job_id, delay, visibility_timeout or timeout."
            )
        words += (encoded, _encode_word(value))
    if len(words) > 2 * MAX_FIELDS:
        raise InvalidJobError(f"the job has {len(words) // 2} fields, and can have at most {MAX_FIELDS}. Combine some.")
    return words


def _encode_word(word: Word) -> bytes:
    if isinstance(word, bytes):
        return word
    try:
        if isinstance(word, str):
            return word.encode("utf-8", "surrogateescape")
        if type(word) in (int, float):  # a bool is an int, too, but has no usual text form
            return str(word).encode()
    except ValueError as error:
        raise InvalidJobError(f"a field cannot hold {word!r:.100}: {error}.") from error
    raise InvalidJobError(f"a field cannot hold {word!r:.100}. Give str, bytes, int or float.")


def _encode_job_id(job_id: str | bytes) -> bytes:
    encoded = _encode_word(job_id)
    if not 0 < len(encoded) <= MAX_JOB_ID_BYTES:
        raise InvalidJobError(f"job_id has {len(encoded)} bytes. Give 1 to {MAX_JOB_ID_BYTES}.")
    if not is_job_id(encoded):
        raise InvalidJobError("job_id has a comma or a control character. Use other characters.")
    return encoded


def _duration_ms(name: str, duration: Duration, least_s: float = 0) -> int:
    try:
        return duration_in_ms(name, duration, least_s)
    except ValueError as error:
        raise InvalidJobError(str(error)) from error
