"""A replica over HTTP, with probes, the status page and its actions. It needs the extra ``web``.

The server has a thread, an event loop and a Redis client of its own. So a probe can report that the loop of the service
hangs, and readers of the page do not slow the replica. Without a token for actions, the page only reads. The page sets
all text from outside as text, never as HTML.
"""
