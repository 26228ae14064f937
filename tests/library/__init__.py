"""What users' programs import and do: the faces, the event loops, the threads, the testing kit."""
