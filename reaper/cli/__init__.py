"""The command ``reaper``, a module for each of its commands: parse, build settings, call one function, show.

`main` only puts them together; drill and pipeline are imported when they are used. Machines read ``--json`` on
stdout, people everything else; what went wrong goes to stderr. Exit code 0 is done, 2 not possible (a sentence says
why), and what 1 means, a command's help says. No logic: what a command knows, `reaper.operations` knows.
"""
