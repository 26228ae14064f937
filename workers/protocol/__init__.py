"""The wire contract, and nothing else: keys, entries, lifecycle events, connections, errors, and how scripts are run.

``docs/protocol.md`` says the same to other languages. `calls` has one typed call for each shared script.

One module spells keys. Replies stay bytes until they are parsed, because a value that is not UTF-8 would raise only
after the server has put its entry into the pending entries list.
"""
