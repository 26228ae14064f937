"""Tests of `deploy/`: systemd, containers, Kubernetes, and monitoring."""
