"""`reaper explain` predicts what the scripts decide about an overdue delivery."""

import itertools
import json
from typing import Any

import pytest
from redis.asyncio import Redis

from reaper.operations.fate import FATAL, Delivery, count_of, fate_of
from workers.protocol.keys import group_keys
from workers.protocol.messages import CLAIM_READY_MS
from workers.protocol.scripts import put_together

pytestmark = pytest.mark.anyio

KEYS = group_keys("orders", "billing")
PLACES = (
    KEYS.stream, KEYS.stream, KEYS.retry, KEYS.dead, KEYS.agreement, KEYS.schedule, KEYS.quarantine, KEYS.journal,
)  # fmt: skip
SCRIPT = put_together("""
--- @keys
--- @prelude
local answers = {}
for i, case in ipairs(cjson.decode(ARGV[3])) do
  local consumer, idle, times, before, is_quarantined, released, limit = unpack(case)
  local job, row = { deliveries = before, quarantined = is_quarantined }, { '5-1', consumer, idle, times }
  redis.call('DEL', quarantine)
  if released ~= cjson.null then
    redis.call('HSET', quarantine, '5-1', released)
  end
  local count = count_of(job, times, limit)
  answers[i] = { digits(count), fate_of(job, row, count, limit) }
end
return answers
""")
CASES = [
    Delivery(*facts)
    for facts in itertools.product(
        ("", "w.0123456789ab", "w.0123456789AB", "plain", "returned-by-reaper"),
        (0, CLAIM_READY_MS - 1, CLAIM_READY_MS),
        (1, 2, 3, FATAL),
        (0, 1, 9),
        (False, True),
        (None, "stream,,0", "stream,2,0", "retry,3,1", "retry,03,1", "stream", ""),
    )
]


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
async def test_explain_and_the_scripts_decide_the_same(client: Redis, limit: int) -> None:
    cases = "[" + ",".join(_as_json(case, limit) for case in CASES) + "]"
    answers: Any = await client.eval(SCRIPT, len(PLACES), *PLACES, KEYS.group, "0", cases)
    decided = {
        case: (int(count), fate.decode(), reason.decode())
        for case, (count, fate, reason) in zip(CASES, answers, strict=True)
    }
    assert {case: (count_of(case, limit), *fate_of(case, limit)) for case in CASES} == decided


def _as_json(case: Delivery, limit: int) -> str:
    return json.dumps([*case, limit])
