"""The command ``reaper``. Each module reads a command line, calls `reaper.operations`, and prints the result.

`main` assembles the commands. It imports `drill` and `pipeline` only for their own commands. Results go to standard
output, as text or as JSON (``-o json``). Errors go to standard error. `workers.runtime.options` defines the exit codes.
"""
