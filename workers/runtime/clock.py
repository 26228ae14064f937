"""The one monotonic clock of this process, in the unit of timers."""

import anyio


def monotonic_ms() -> int:
    """Return milliseconds of the event loop's monotonic clock (virtual where the loop's is)."""
    return int(anyio.current_time() * 1000)
