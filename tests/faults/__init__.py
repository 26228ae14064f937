"""Faults: Processes are killed, paused, cut off, full or broken, and the promises must hold."""
