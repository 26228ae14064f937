"""What the tests stand on: servers, a proxy, processes, waiting, and the checker of the invariants."""
