"""What people ask of a running system and do to it. The commands and the status page show and call this."""
