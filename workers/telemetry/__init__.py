"""Traces and metrics: names, spans of deliveries, instruments, and how they are exported."""
