"""The lake: its tables, and how lifecycle events and dead letters get there, each once."""
