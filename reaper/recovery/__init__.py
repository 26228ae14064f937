"""What a leader does in its term: watch every pair, keep a timer for each delivery, and recover what stalls."""
