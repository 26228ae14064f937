"""The command ``worker``, also as ``python -m workers``: heeds signals, and then imports what it is made of."""

from workers.runtime.entrance import enter


def main() -> None:
    """Run what was typed."""
    enter(services=("run",))
    from workers.cli import main as worker

    worker(prog_name="worker" if __name__ != "__main__" else "python -m workers")


if __name__ == "__main__":
    main()
