"""The side of operators: commands, health, settings, and their effects on Redis."""
