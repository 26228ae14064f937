"""Plays real faults on real processes and a real Redis, and accounts for every job in a ledger.

Begin with `drill` and `act`, which play an act. `cast` starts the workers and reapers as processes, as systemd would.
`faults` names the faults, and `kit` injects them. `evidence`, `promises` and `ledger` judge the act afterwards.
The drill uses neither the worker's loop nor the reaper's. It judges them by their writes in Redis, and by the lines
that the jobs have written.
"""
