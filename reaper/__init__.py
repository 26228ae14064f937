"""Recovers stalled jobs of Redis Streams. Replicas share the groups, and watch their pending entries lists.

::

    from reaper import GroupSettings, Reaper, ReaperSettings

    settings = ReaperSettings(groups=(GroupSettings(stream="orders", group="billing"),))
    async with Reaper(settings) as reaper:
        ...

Run it with ``reaper run``, or inside a program as above. A name is imported when you first use it, as in `workers`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reaper.service import Reaper as Reaper
    from reaper.settings import GroupSettings as GroupSettings
    from reaper.settings import ReaperSettings as ReaperSettings
    from workers.protocol.errors import ConfigurationError as ConfigurationError
    from workers.protocol.errors import StreamReaperError as StreamReaperError
    from workers.protocol.errors import UnreachableError as UnreachableError
    from workers.protocol.errors import UnsupportedServerError as UnsupportedServerError
    from workers.protocol.messages import Redelivery as Redelivery
else:
    _HOMES = {
        "ConfigurationError": "workers.protocol.errors",
        "GroupSettings": "reaper.settings",
        "Reaper": "reaper.service",
        "ReaperSettings": "reaper.settings",
        "Redelivery": "workers.protocol.messages",
        "StreamReaperError": "workers.protocol.errors",
        "UnreachableError": "workers.protocol.errors",
        "UnsupportedServerError": "workers.protocol.errors",
    }
    __all__ = list(_HOMES)

    def __getattr__(name: str) -> object:
        """Import a name of the public API at its first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
