"""Queries and actions of operators. The command line and the status page call them.

- `snapshot` reads the state at one moment, and `judgement` decides whether it is healthy
- `doctor` finds settings and servers that cannot work
- `job_search` and `explanation` find one job
- `dead_letters`, `redrive`, `requeue`, `groups` and `drain` act

Rules:

- Queries change no key, and no idle time.
- An action is one script, or several scripts of which each can be the last. So an action can be repeated.
- Judging is pure.
- No function needs a running replica or click.

A snapshot is not one consistent view of many keys. It is as old as its oldest reply.
"""
