"""``python -m reaper`` is ``reaper``."""

from reaper.cli.main import main

main(prog_name="reaper")
