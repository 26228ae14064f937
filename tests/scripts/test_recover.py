"""``recover``: entries that were given back where they are."""

import pytest

from tests.scripts.scene import Scene

pytestmark = pytest.mark.anyio
GIVEN_BACK_MS = 10**11


@pytest.mark.parametrize(
    ("before", "times", "stays"),
    [(0, 1, True), (0, 2, True), (0, 3, False), (1, 1, True), (1, 2, False), (2, 1, False)],
)
async def test_in_place_a_job_is_ready_again_until_its_deliveries_are_used_up(
    scene: Scene, before: int, times: int, *, stays: bool
) -> None:
    """Those before this entry count, too."""
    entry = await scene.add("n", 1, "reaper.deliveries", before)
    await scene.deliver(entry, times=times, idle_ms=GIVEN_BACK_MS)
    await scene.recover(entry, policy="in-place")
    assert [one for one, _, _ in await scene.pending()] == [entry] * stays
    assert await scene.client.xlen(scene.keys.dead) == (not stays)
