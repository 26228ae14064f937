"""``python -m reaper`` is ``reaper``."""

from reaper.cli import main

main(prog_name="reaper")
