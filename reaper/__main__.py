"""The command ``reaper``, also as ``python -m reaper``: heeds signals, and then imports what it is made of."""

from workers.runtime.entrance import enter


def main() -> None:
    """Run what was typed."""
    enter(services=("run", "pipeline ingest"), reloading=("run",))
    from reaper.cli.main import main as reaper

    reaper(prog_name="reaper")


if __name__ == "__main__":
    main()
