"""The command ``reaper``, a module for each of its commands: parse, build settings, call one function, show.

`main` only puts them together; drill and pipeline are imported when they are used. Machines read ``--json`` on
stdout, people everything else; what went wrong goes to stderr. Exit code 0 is done, 2 not possible, 3
Redis unreachable, and a command's help says what 1 means. No logic: what a command knows, `reaper.operations` knows.
"""
