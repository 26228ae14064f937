"""Faults: what is killed, paused, cut, full or broken, and what must hold all the same."""
