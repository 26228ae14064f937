"""Gives stalled Redis Streams jobs back: elect a leader, watch the pending entries list, recover what stalls."""
