"""Ways to recover and to give back, by their names in tests: ``reaper``, ``embedded``, ``embedded/in-place``."""

EMBEDDED_IN_PLACE = "embedded/in-place"


def mode_settings(mode: str) -> dict[str, str]:
    """Return the settings of a worker in a mode."""
    recovery, _, redelivery = mode.partition("/")
    return {"recovery": recovery} | ({"redelivery": redelivery} if redelivery else {})


def mode_flags(mode: str) -> list[str]:
    """Return the same as options of a command."""
    return [word for name, value in mode_settings(mode).items() for word in (f"--{name}", value)]
