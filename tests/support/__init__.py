"""The foundations of the tests: servers, a proxy, processes, waiting, and the checker of the invariants."""
