"""``python -m reaper.drill``: the drill by itself."""

import click

from reaper.drill.cli import demo, drill

main = click.Group("reaper.drill", commands={"drill": drill, "demo": demo}, help="The failure drill.")

if __name__ == "__main__":
    main()
