"""A Python Data Source for Spark that reads and writes Redis streams."""
