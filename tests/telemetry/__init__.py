"""Spans, metrics and logs."""
