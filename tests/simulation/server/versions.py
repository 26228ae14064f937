"""The differences between the versions of Redis that the model stands for, each under a name of its own."""

from dataclasses import dataclass

KNOWN = ("6.2", "7.0", "8.2", "8.4", "8.6", "8.8", "8.10")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features of a server of one version."""

    name: str
    full: str
    """As ``INFO`` says it."""
    is_7: bool
    """Errors of scripts are tables; XCLAIM and XAUTOCLAIM drop what has no payload; streams count what was added."""
    is_7_2: bool
    """Scripts tell of missing rights with ``NOPERM``; a consumer is made by every read, and has an `inactive` time."""
    has_claim: bool
    """8.4: XREADGROUP takes ``CLAIM``."""
    has_nack: bool
    """8.8: XNACK."""
    has_maxcount: bool
    """8.10: XREADGROUP takes ``MAXCOUNT`` and ``MAXSIZE``."""


def capabilities_of(version: str) -> Capabilities:
    """Return what ``version``, one of `KNOWN`, is capable of. Raises ValueError for another."""
    if version not in KNOWN:
        raise ValueError(f"the model stands for {', '.join(KNOWN)}, and not for {version}")
    major, minor = (int(part) for part in version.split("."))
    return Capabilities(
        name=version,
        full={"6.2": "6.2.14", "7.0": "7.0.15"}.get(version, f"{version}.3"),
        is_7=major >= 7,
        is_7_2=(major, minor) >= (7, 2),
        has_claim=(major, minor) >= (8, 4),
        has_nack=(major, minor) >= (8, 8),
        has_maxcount=(major, minor) >= (8, 10),
    )
