"""What runs it: systemd, containers, Kubernetes; and what watches it."""
