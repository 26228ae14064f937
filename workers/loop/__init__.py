"""One worker at work: read, execute, settle, and prove meanwhile that it lives.

A delivery is `held` from the read that brought it to the settlement that ends it. It is queued, runs, and has ended:
then there is a verdict, which waits to be settled. `held` alone changes that. `slots` runs at most `concurrency`
deliveries, `runner` takes one through its steps, `settlement` writes verdicts, many in a call.

What holds here. A read ends only between reads: a cancelled one would leave entries with us that we never hear of. A
verdict is settled in one place, and until it is answered; not settling is always allowed, since what stays pending is
recovered. Nobody waits for the journal, for callbacks or for telemetry. The heartbeat's thread reads deliveries,
writes `Held.proven` alone, and hands everything else to the event loop.

Not promised: that a job is run once, or that a thread whose job was taken away stops.
"""
