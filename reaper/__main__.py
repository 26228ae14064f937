"""The command ``reaper``, also as ``python -m reaper``."""

import sys

INTERRUPTED_EXIT = 130
"""Exit code after Ctrl-C, as in shells."""


def main() -> None:
    """Run the command line."""
    try:
        from reaper.cli.main import main as reaper
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT)
    reaper(prog_name="reaper")


if __name__ == "__main__":
    main()
