"""The pauses between two calls that move scheduled and quarantined jobs of a group. Pure."""

from workers.protocol.calls.group_moves import DueMoves

RELEASE_POLL_S = 0.02, 0.5
"""Pause while jobs are quarantined: short while released jobs settle, long while one runs."""


class MovePace:
    """Decides when `GroupMoves.move_due` is called again."""

    def __init__(self) -> None:
        self._poll_s = RELEASE_POLL_S[0]

    def pause_after(self, moved: DueMoves) -> float | None:
        """Return the seconds until the next call. None means that no job is scheduled or quarantined."""
        quick, slow = RELEASE_POLL_S
        waits = moved.quarantined + moved.out > 0
        self._poll_s = quick if not waits or moved.released or moved.settled else min(self._poll_s * 1.5, slow)
        pauses = [self._poll_s] if waits else []
        if moved.next_due_ms >= 0:
            pauses.append(moved.next_due_ms / 1000)
        return min(pauses, default=None)
