"""The tests of ``make test``, and those of ``make test-matrix`` only (pytest's option ``--matrix``).

The matrix is everything on every server at hand. That takes long, and says little more than one server does about what
only moves jobs to and fro. So ``make test`` runs on the server that comes with the package. A *contract*, which is a
test of the server's own behavior, runs on every server at hand, too. Tests with several Java machines belong to the
matrix. If servers are named (``--server``), all tests run on those only.

Tests with containers or a systemd are a tier of their own, ``make test-deploy`` (``--deploy``).
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support.servers import binaries_at_hand, default_binary, lane_of

OPTION = "--matrix"
LANE = "--server"
DEPLOY = "--deploy"
RECORD = "--record"
CONTRACTS = ("scripts", "protocol")
"""Folders whose tests are contracts. Others are marked: ``pytest.mark.contract``."""
ONLY = "only_on"
"""The mark of what is about some releases alone, by the beginnings of their names: ``pytest.mark.only_on("6.2.")``."""
WITH_CLAIM = ("8.4.", "8.6.", "8.8.", "8.10.")
"""The releases that know ``XREADGROUP … CLAIM``, by the beginnings of their names."""
HEAVY = "matrix"
"""The mark of what is left out of ``make test``."""
DEPLOYED = "deployed"
"""The mark of what ``make test-deploy`` alone runs."""


def in_matrix(*values: Any) -> Any:
    """A case of a test with parameters that is left out of ``make test``, where a like one runs."""
    return pytest.param(*values, marks=getattr(pytest.mark, HEAVY))


def by_claim(*values: Any) -> Any:
    """A case of a test with parameters that runs on servers with CLAIM alone, where the test runs on one."""
    return pytest.param(*values, marks=getattr(pytest.mark, ONLY)(*WITH_CLAIM))


def servers_for(item: pytest.Item | pytest.Function) -> tuple[Path, ...]:
    """Return the servers that a test runs on."""
    only = item.get_closest_marker(ONLY)
    return tuple(binary for binary in _servers_for(item) if only is None or lane_of(binary).startswith(only.args))


def _servers_for(item: pytest.Item | pytest.Function) -> tuple[Path, ...]:
    asked = asked_for(item.config)
    if asked:
        return asked
    is_contract = item.path.parent.name in CONTRACTS or item.get_closest_marker("contract") is not None
    return binaries_at_hand() if is_contract or item.config.getoption(OPTION) else (default_binary(),)


def asked_for(config: pytest.Config) -> tuple[Path, ...]:
    """Return the servers that ``--server`` names, if it names any. Raises ValueError where one is not at hand."""
    names: list[str] = config.getoption(LANE)
    if not names:
        return ()
    by_lane = {lane_of(binary): binary for binary in binaries_at_hand()}
    strangers = [name for name in names if name not in by_lane]
    if strangers:
        raise ValueError(f"{LANE} {strangers[0]}: not at hand; there are {', '.join(by_lane)}")
    return tuple(binary for lane, binary in by_lane.items() if lane in names)


def has_server(item: pytest.Item) -> bool:
    """Return whether a test that runs on servers has its server, because some tests and cases are about certain
    releases."""
    if not isinstance(item, pytest.Function) or "binary" not in item.fixturenames:
        return True
    servers, case = servers_for(item), item.callspec.params.get("binary") if hasattr(item, "callspec") else None
    return case in servers if case else bool(servers)


def split(config: pytest.Config, items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests of this run, and the ones that it leaves out."""
    unasked = [mark for mark, option in ((HEAVY, OPTION), (DEPLOYED, DEPLOY)) if not config.getoption(option)]
    kept, left_out = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        (left_out if any(item.get_closest_marker(mark) for mark in unasked) else kept).append(item)
    return kept, left_out
