"""The command ``worker``, also as ``python -m workers``: handles signals first, then imports its parts."""

from workers.runtime.entrance import enter


def main() -> None:
    """Run the command line."""
    enter(services=("run",))
    from workers.cli import main as worker

    worker(prog_name="worker" if __name__ != "__main__" else "python -m workers")


if __name__ == "__main__":
    main()
