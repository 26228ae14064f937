"""Recommends the visibility timeout of each group, from the time for which its workers held executions.

`executions` reads answers of the lake. `bound` and `timeouts` decide, and `words` writes the recommendations.
"""
