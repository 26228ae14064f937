"""What users test their handlers and workers with."""
