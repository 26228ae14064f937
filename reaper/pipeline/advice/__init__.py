"""Which visibility timeout to set: what each candidate would have cost on what was recorded, and which least.

`records` counts (Spark), `model` decides (pure arithmetic on histograms), `fragment` writes the settings.
"""
