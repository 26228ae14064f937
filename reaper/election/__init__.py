"""Who leads: one replica of a namespace at a time, for as long as its lease is renewed."""
