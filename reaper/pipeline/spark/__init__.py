"""Spark itself: a Java to run it, a session, and a start that does not take forever."""
