"""Plays the same drill with the same faults at the same moments in each recovery mode, and compares the results.

`scenarios` has the situations, and `play` starts the drills. `figures` measures them, and `verdict` compares the modes.
`page` and `chart` write the results.
"""
