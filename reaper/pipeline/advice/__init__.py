"""Which visibility timeout to set: what each is expected to cost, which one least, and how sure that is.

`records` counts (Spark); all else is arithmetic in plain Python. `model` says what is known and what an advice is;
`outlook` expects durations (counts, and beyond them the `families` of tails), `crashes` how often workers die, `costs`
puts both together; `choice` decides and says how sure it is; `drift` compares halves; `fragment` writes the settings.
"""
