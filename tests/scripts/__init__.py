"""Tier 2: every Lua script on real servers, with the whole state before and after."""
