"""The command ``reaper``, also as ``python -m reaper``: handles signals first, then imports its parts."""

from workers.runtime.entrance import enter


def main() -> None:
    """Run the command line."""
    enter(services=("run", "pipeline ingest"))
    from reaper.cli.main import main as reaper

    reaper(prog_name="reaper")


if __name__ == "__main__":
    main()
