"""Finds a Java for Spark, and builds its session.

The session is embedded by default, and the same program runs on a cluster or through Spark Connect. The package does
not depend on the queries.
"""
