"""A wish to stop that is waited for in no time."""

import threading


class Hurry(threading.Event):
    """It is never set, and does not wait."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(timeout and 0)
