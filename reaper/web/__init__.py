"""A replica over HTTP: probes, the status page, and its actions. Needs the extra ``web``; nothing else imports it.

In a thread with an event loop and a Redis client of its own: a probe can say that the service's loop hangs, and whoever
looks at a page costs the leader nothing. Read-only unless a token for actions is configured. Everything that comes from
outside is set as text.
"""
