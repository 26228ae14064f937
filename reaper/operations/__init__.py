"""Queries and actions of operators. The command line and the status page call them.

- `snapshot` reads the state at one moment, and `judgement` decides whether it is healthy
- `doctor` also finds settings and servers that cannot work
- `job_search` finds one job, and `explanation` describes its next step
- `ready_again`, `dead_letters`, `groups` and `drain` act

Rules:

- Queries change no key, and no idle time.
- An action is one script, or several scripts of which each can be the last. So an action can be repeated.
- Judging is pure.
- No function needs a running replica or click.

A snapshot is not one consistent view of many keys. It is as old as its oldest reply.
"""
