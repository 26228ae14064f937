"""Which visibility timeout to set: what each candidate would have cost on what was recorded, and which least.

`model` decides (pure arithmetic on histograms), `reaper.pipeline.advice.records` counts (Spark), `fragment` writes
the settings.
"""
