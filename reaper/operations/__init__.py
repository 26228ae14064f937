"""What people ask of a running system and do to it; the command line and the status page call this.

`snapshot` gathers what can be known at one moment, `judgement` says whether that is healthy and why not. `doctor`
says what cannot work, or soon will not. `job_search` and `explanation` tell one job's story. `dead_letters`,
`redrive`, `groups` and `terms` act. `settings_file` is what a newcomer begins with.

What holds here. Reading changes nothing, not even idle times. An action is one script, or a row of scripts each of
which may be the last: it can be repeated. Judging is pure. Nothing here needs a replica to run, or click to be
called.

Not promised: one consistent view of many keys; a snapshot is as old as its oldest reply.
"""
