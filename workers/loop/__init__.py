"""One worker at work: read, execute, settle, and prove meanwhile that it lives."""
