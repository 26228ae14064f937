"""Spark itself: a Java to run it, a session, and a start that does not take forever.

The session is embedded by default, and the same program runs on a cluster or through Spark Connect. Nothing here knows
what is computed.
"""
