import anyio, sys, time
from importlib import import_module
from tests.benchmarks.figures import HEADER
async def go():
    for n in sys.argv[1:]:
        if n.startswith('-'): continue
        t=time.time()
        r = await import_module(f"tests.benchmarks.{n}").measure(quick="--quick" in sys.argv)
        for row in r.rows: print(row.cells())
        for b in r.breakdowns: print(b)
        print(n, time.time()-t)
anyio.run(go)
