"""The names of the world: the server's address, and the keys."""

from workers.protocol.keys import group_keys, namespace_keys

URL = "redis://127.0.0.1:6379/0"
"""Nobody ever connects to it: the simulated loop knows one network only."""
STREAM, GROUP = "orders", "billing"
KEYS = group_keys(STREAM, GROUP)
NAMESPACE = namespace_keys("reaper")
EPOCH_S = 1_700_000_000
"""What the server's clock says when a story begins."""
