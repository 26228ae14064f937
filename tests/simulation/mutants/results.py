"""The results of each mutant, kept from run to run, because a run is long and may be ended and continued."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.simulation.mutants.catalogue import ROOT, Mutant
from tests.simulation.mutants.tiers import Catch

FOLDER = ROOT / ".mutants"
NONE = "none"


@dataclass(slots=True)
class Result:
    """The result of one mutant so far."""

    name: str
    digest: str
    tree: str
    """What product and tests were then."""
    caught: Catch | None = None
    survived: list[str] = field(default_factory=list)
    """Steps that found nothing."""
    ended: bool = False
    """There is nothing more to try."""
    alone: str = ""
    """The seed that finds it among the stories of a run, or `NONE`; '' = they were not played."""

    def save(self) -> None:
        """Keep it."""
        FOLDER.mkdir(exist_ok=True)
        _place(self.name).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")


def known(mutant: Mutant) -> Result | None:
    """Return what is known of a mutant, as it is now; the product and the tests may have changed since."""
    place = _place(mutant.name)
    if not place.exists():
        return None
    told = json.loads(place.read_text(encoding="utf-8"))
    caught = told.pop("caught")
    result = Result(**told, caught=Catch(**caught) if caught else None)
    return result if result.digest == mutant.digest else None


def _place(name: str) -> Path:
    return FOLDER / f"{name}.json"
