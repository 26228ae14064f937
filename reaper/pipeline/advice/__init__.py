"""Recommends the visibility timeout of each group: a floor, or a quantile of how long its workers held executions.

`executions` asks the lake (Spark). `bound` and `timeouts` decide, `words` writes, all in plain Python.
"""
