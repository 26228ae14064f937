"""The failure drill: real processes, a real Redis, real faults, and a ledger in which every job is accounted for.

Read in this order: `drill` and `act` (what is played), `cast` (by whom), `faults` and `injection` (what is broken, and
how), `evidence` and `ledger` (what is known afterwards, and what follows from it). The drill starts workers and reapers
as processes, as systemd would, and imports neither's loop: it judges them by what they leave in Redis and by what the
jobs wrote down.
"""
