"""The failure drill: real processes, a real Redis, real faults, and a ledger that accounts for every job.

Start reading at `drill` and `act`, which play an act. `cast` starts the workers and reapers as processes, as systemd
would. `faults` names the faults, and `kit` injects them. `evidence`, `promises` and `ledger` judge the act afterwards.
The drill uses neither the worker's loop nor the reaper's. It judges them by their writes in Redis, and by the lines
that the jobs have written.
"""
