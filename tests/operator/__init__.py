"""The operator's side: commands, health, settings, and what they do to Redis."""
