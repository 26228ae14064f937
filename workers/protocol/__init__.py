"""The wire contract: keys, entries, lifecycle events, shared scripts, settings and connections.

The only code that workers and reapers share. ``docs/protocol.md`` says the same to other languages.
"""
