"""The wire contract: pure tests, and those that hold its Python and its Lua side together."""
