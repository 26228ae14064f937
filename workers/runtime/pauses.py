"""How long to wait before we try to reach Redis again."""

import random

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 0.75


def pause_s(failures: int) -> float:
    """Return the pause after so many failures in a row; jittered, so that workers do not come back all at once."""
    return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(failures - 1, 10)) * random.uniform(0.5, 1)
