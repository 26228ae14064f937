"""The ``reaper`` command, a module for each of its commands: parse, build settings, call one function, show."""
