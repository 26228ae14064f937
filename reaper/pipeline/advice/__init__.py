"""Recommends the visibility timeout of each group, from the time for which its workers held executions.

`executions` asks the lake (Spark). The others are plain Python: `bound` and `timeouts` decide, `words` writes.
"""
