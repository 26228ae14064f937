"""The library in users' programs: public names, event loops, threads, and the testing kit."""
