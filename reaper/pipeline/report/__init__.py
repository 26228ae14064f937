"""Asks the lake every question of `reaper.pipeline.analysis`, and writes the answers on one page.

`reading` asks, and `findings` makes tables of the answers. `live` searches unsettled jobs in Redis. `page` writes the
sections, with `charts` and `next_steps`.
"""
