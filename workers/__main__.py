"""The command ``worker``, also as ``python -m workers``."""

from workers.cli import main as main

if __name__ == "__main__":
    main()
