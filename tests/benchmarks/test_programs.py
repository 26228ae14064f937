"""Every benchmark runs with small numbers, so that none fails when its results are needed."""

import pytest
from click.testing import CliRunner

from tests.benchmarks.__main__ import BENCHMARKS, main


@pytest.mark.matrix
@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_runs_to_its_end(name: str) -> None:
    result = CliRunner().invoke(main, ["--only", name, "--quick"], catch_exceptions=False)
    assert result.exit_code == 0
    assert f"== {name}: " in result.stdout
