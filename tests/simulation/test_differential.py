"""The model of the server and the real servers at hand get the same commands, and must agree.

Their clocks move only when a story lets time pass. So all replies are compared, and in the end all keys, with the
owner, count and time of each pending entry. A difference is a bug in the model.
"""

import re
from collections.abc import Iterator
from contextlib import closing
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

from tests.simulation import drawn_calls
from tests.simulation.drawn_calls import call_stories
from tests.simulation.drawn_commands import Step, claim_stories, command_stories, undo
from tests.simulation.server.commands import COMMANDS, CONTAINERS
from tests.simulation.server.server import NOT_WHILE_LOADING
from tests.simulation.twin_sides import START_US
from tests.simulation.twins import Twins
from tests.support.clock import ServerClock
from tests.support.fixtures import server_clock
from tests.support.servers import RedisServer
from tests.support.tiers import OPTION, WITH_CLAIM
from workers.protocol.messages import text

pytestmark = pytest.mark.contract
ON_MODELS = pytest.mark.only_on("6.2.", "7.0.")
"""For other versions the model is a sketch, except for reads with CLAIM."""


@pytest.fixture
def clock(tmp_path: Path) -> ServerClock:
    """The clock of the server, which stands."""
    return server_clock(tmp_path, stands=True)


@pytest.fixture
def standing(binary: Path, clock: ServerClock, tmp_path: Path) -> Iterator[RedisServer]:
    """A server whose clock stands."""
    folder = tmp_path / "redis"
    folder.mkdir()
    clock.stand_at(START_US)
    server = RedisServer(binary, folder, environment=clock.environment)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def times(request: pytest.FixtureRequest) -> int:
    """How many times as many stories are played as in `make test`."""
    return 30 if request.config.getoption(OPTION) else 1


def _tell(
    stories: SearchStrategy[list[Step]], server: RedisServer, clock: ServerClock, *, examples: int, whole: bool = True
) -> None:
    """Tell so many stories, each to an empty server and a new model; compare the ``whole`` state in the end."""

    @settings(max_examples=examples, report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
    @given(stories)
    def tell(story: list[Step]) -> None:
        with closing(Twins(server, clock)) as twins:
            try:
                for step in story:
                    step.do(twins)
                if whole:
                    twins.compare_state()
            finally:
                undo(twins)

    tell()


@ON_MODELS
def test_model_answers_commands_as_the_server_does(standing: RedisServer, clock: ServerClock, times: int) -> None:
    """Plain commands, transactions, channels and blocked reads, also on a full server, on a replica, without rights."""
    _tell(command_stories(steps=50), standing, clock, examples=50 * times)


@pytest.mark.only_on(*WITH_CLAIM)
def test_model_claims_as_the_server_does(standing: RedisServer, clock: ServerClock, times: int) -> None:
    """Reads with CLAIM, of overdue, returned, young, deleted and new entries."""
    _tell(claim_stories(steps=30), standing, clock, examples=25 * times, whole=False)


@ON_MODELS
def test_model_runs_scripts_as_the_server_does(standing: RedisServer, clock: ServerClock, times: int) -> None:
    """Every script, called like workers, holders and operators call it, in the same states of the server."""
    _tell(call_stories(steps=40), standing, clock, examples=40 * times)


def test_stories_call_every_script() -> None:
    """A new script must be drawn as well, because otherwise the model is not compared for it."""
    shipped = {
        script.stem
        for package in ("workers.protocol", "reaper", "reaper.pipeline")
        for script in (Path(str(files(package))) / "lua").glob("*.lua")
    }
    called = set(re.findall(r'"([a-z]+(?:_[a-z]+)*)"', Path(drawn_calls.__file__).read_text()))
    assert shipped - called <= {"keys"}  # a part of the others


@pytest.mark.only_on("7.0.")
def test_model_rejects_the_same_commands_while_it_reads_its_data(standing: RedisServer) -> None:
    """The server says of each command whether it runs while it is loading."""
    every = [*COMMANDS.values(), *(found for container in CONTAINERS.values() for found in container.values())]
    ask = "return redis.call('COMMAND', 'INFO', unpack(ARGV))"
    rows = standing.command("EVAL", ask, 0, *(found.name for found in every))
    told = [(found, {text(flag) for flag in row[2]}) for found, row in zip(every, rows, strict=True) if row]
    model = {found.name: found.kind == "control" and found.name not in NOT_WHILE_LOADING for found, _ in told}
    assert model == {found.name: "loading" in flags for found, flags in told}
