"""The simulation: whole systems of shipping code on virtual time, with faults drawn by seed, and a judge.

`docs/internals/simulation.md` explains the house. `python -m tests.simulation SEED` plays one story.
"""
