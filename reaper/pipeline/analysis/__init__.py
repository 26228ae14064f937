"""Questions to a lake. Each is one SQL file, and `asking` runs them on Spark."""
