"""The command ``reaper``, also as ``python -m reaper``."""

from reaper.cli.main import main as main

if __name__ == "__main__":
    main(prog_name="reaper")
