"""What the lake's events say: pure ``DataFrame → DataFrame`` functions.

Two rules keep them fast on millions of events, and a test reads the query plans for them. No string is aggregated
(``first(<string>)`` sorts all its input): strings are group keys, numbers are aggregated. And no window lies over all
events: `histories` first picks the few jobs with a story to tell, and `quantiles` first counts equal values.
"""
