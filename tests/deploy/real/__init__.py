"""`deploy/` run for real: containers under Docker Compose, and units under systemd. `make test-deploy`."""
