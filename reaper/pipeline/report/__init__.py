"""The report: asks the lake every question of `reaper.pipeline.analysis`, and writes the answers on one page.

`scope` chooses the events, `queries` lists the questions, `findings` asks them, `charts` draws, `page` writes.
"""
