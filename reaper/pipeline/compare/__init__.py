"""The comparison: the same drill, with the same faults at the same moments, once for each way to recover.

`scenarios` (what is played), `play` (starts the drills), `journals` (what Spark reads from what they left), `figures`
and `verdict` (what the numbers say), `page` (writes it down).
"""
