"""The wire contract, which is keys, entries, lifecycle events, connections, errors and scripts.

``docs/protocol.md`` describes it for other languages. `calls` has one typed call for each shared script.

Only `keys` spells keys. Replies stay bytes until they are parsed, because a value that is not UTF-8 would raise only
after the server has put its entry into the pending entries list.
"""
