"""A lake that was made up, to rehearse on: for the class cache, for demonstrations and for tests."""
