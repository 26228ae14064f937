import random
from tests.faults.test_poison import *
@newest_server
@pytest.mark.parametrize("seed", range(8))
async def test_x(case, bare_worker, our_worker, seed):
    rnd = random.Random(seed)
    n = 150
    places = set(rnd.sample(range(n), rnd.choice([2, 3])))
    poison = []
    for i in range(n):
        if i in places:
            poison += await case.enqueue(1, poison="")
        else:
            await case.enqueue(1)
    start = rnd.choice([bare_worker, our_worker])
    policy = "stream" if start is bare_worker else rnd.choice(["stream", "retry-stream"])
    maxd = rnd.choice([2, 3, 4])
    async with leading(quick_settings(case.server, max_deliveries=maxd, redelivery=policy, **VISIBILITY)) as l, supervised(start, "w1", "w2", "w3"):
        await all_over(case)
    print(start, policy, maxd, Counter((e.event, e.data.get("delivery"), e.data.get("reason")) for e in await case.events()))
    starts = Counter(start.job for start in case.starts)
    v = await case.violations(finished=True, poison=frozenset(poison), max_deliveries=maxd)
    print([starts[p] for p in poison], v)
    assert v == []
    assert sorted(l.job for l in (await case.state()).dead) == sorted(poison)
