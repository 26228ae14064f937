"""The explorer: plays random short schedules of workers, leaders and faults against the scripts, on a real server."""
