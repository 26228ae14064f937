"""Recovery without a reaper: what workers do for their group by themselves."""
