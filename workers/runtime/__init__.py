"""What every process of ours needs, worker or reaper: settings, logs, contact with Redis, health, callbacks."""
