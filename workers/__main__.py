"""The command ``worker``, also as ``python -m workers``."""

import sys

INTERRUPTED_EXIT = 130
"""Exit code after Ctrl-C, as in shells."""


def main() -> None:
    """Run the command line."""
    try:
        from workers.cli import main as worker
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED_EXIT)
    worker(prog_name="worker" if __name__ != "__main__" else "python -m workers")


if __name__ == "__main__":
    main()
