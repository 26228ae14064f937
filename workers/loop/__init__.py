"""The loop of a worker: it reads, executes and settles deliveries, and sends heartbeats for them.

A delivery is in flight from its read to its settlement. It is queued, it runs, and it has ended with a verdict that
waits for its settlement. Only `job` changes this state. `slots` runs at most `concurrency` deliveries. `runner` takes
one through its steps. `settlement` writes many verdicts in a call.

- A read is never cancelled, because its entries would be pending here without our knowledge.
- Only `settlement` settles, and it repeats a call until it is answered. An unsettled delivery is recovered.
- The journal, callbacks and telemetry never delay a job.
- The thread of the heartbeat reads deliveries, and writes only `Delivery.proven`. The event loop does the rest.

It does not promise that a job runs once, or that the thread of a recovered job stops.
"""
