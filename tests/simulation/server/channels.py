"""Channels, and the sessions that listen to them."""

from tests.simulation.server.sessions import Session


class Channels:
    """All channels of a server."""

    def __init__(self) -> None:
        self._listeners: dict[bytes, dict[int, Session]] = {}

    def publish(self, channel: bytes, message: bytes) -> int:
        """Push a message to all listeners, and return their number."""
        listeners = list(self._listeners.get(channel, {}).values())
        for session in listeners:
            session.push([b"message", channel, message])
        return len(listeners)

    def subscribe(self, session: Session, channel: bytes) -> None:
        """Subscribe a session to a channel."""
        session.channels[channel] = None
        self._listeners.setdefault(channel, {})[session.id] = session
        session.push([b"subscribe", channel, len(session.channels)])

    def unsubscribe(self, session: Session, channels: list[bytes]) -> None:
        """Unsubscribe a session from these channels, or from all."""
        wanted: list[bytes | None] = [*(channels or session.channels)]
        for channel in wanted or [None]:
            if channel is not None:
                session.channels.pop(channel, None)
                self._listeners.get(channel, {}).pop(session.id, None)
            session.push([b"unsubscribe", channel, len(session.channels)])

    def forget(self, session: Session) -> None:
        """Note that a session is closed."""
        for channel in session.channels:
            self._listeners[channel].pop(session.id, None)
        session.channels.clear()
