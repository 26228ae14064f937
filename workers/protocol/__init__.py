"""The wire contract, and nothing else: keys, entries, lifecycle events, connections, errors, and how scripts are run.

``docs/protocol.md`` says the same to other languages. `calls` has one typed call for each shared script.

What holds here. One module spells keys. Replies stay bytes until they are parsed, in one place: a value that is no
UTF-8 would raise only after the server has put its entry into the pending entries list. redis-py's own retries are off,
since a command whose reply was lost would be sent twice; scripts that guard every write by the state it changes may be.
`keys`, `messages`, `events` and `errors` need only the standard library.
"""
