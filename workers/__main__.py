"""``python -m workers`` is the command ``worker``."""

from workers.cli import main

main(prog_name="python -m workers")
