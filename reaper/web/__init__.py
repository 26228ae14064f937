"""A replica over HTTP, with probes and the status page. It needs the extra ``web``.

The server has a thread, an event loop and a Redis client of its own. So a probe can report that the loop of the service
hangs, and readers of the page do not slow the replica. The page only reads, and shows commands to paste. It sets all
text from outside as text, never as HTML.
"""
