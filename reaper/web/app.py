"""The web server of a replica: probes, and the status page with its data."""

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files

from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from reaper.operations.explanation import Explanation
from reaper.operations.job_search import find_job
from reaper.service import Reaper
from reaper.web.overview import Overview
from reaper.web.vitals import ReaperVitals
from workers.protocol.connection import commands_client
from workers.runtime.health_server import NO_STORE, Pulse, make_app, probe_routes

REDIS_TIMEOUT_S = 2.0
JOB_DEPTH = 10_000
LONGEST_ID = 300


@asynccontextmanager
async def replica_app(reaper: Reaper, pulse: Pulse) -> AsyncIterator[Starlette]:
    """Make the app, with Redis clients of its own, for the loop it is served in. Pages keep no probe waiting."""
    settings = reaper.settings
    client = commands_client(settings.redis_url, timeout_s=REDIS_TIMEOUT_S, max_connections=4)
    home = settings.namespace_keys.replicas
    probing = commands_client(settings.redis_url, key=home, timeout_s=REDIS_TIMEOUT_S, max_connections=1)
    overview = Overview(client, reaper)

    async def job(request: Request) -> Response:
        wanted = request.query_params.get("id", "").strip()
        if not 0 < len(wanted) <= LONGEST_ID:
            return _failed(400, f"give a job ID or an entry ID, of {LONGEST_ID} characters at most")
        try:
            snapshot = await overview.snapshot()
            jobs = [(group, await find_job(client, group.keys, wanted, depth=JOB_DEPTH)) for group in snapshot.groups]
        except (RedisError, OSError) as error:
            return _failed(503, f"Redis does not answer: {error}")
        known = [Explanation(found, group, snapshot).as_json() for group, found in jobs if found.is_known]
        return JSONResponse(known, headers=NO_STORE)

    try:
        probes = probe_routes(ReaperVitals(reaper, pulse, overview, probing))
        yield make_app([*probes, Route("/", _page), Route("/api/job", job)], settings.health_host)
    finally:
        await client.aclose()
        await probing.aclose()


@cache
def page_and_policy() -> tuple[str, str]:
    """Return the page, and the content security policy that allows only its own scripts and styles."""
    page = (files("reaper.web") / "page.html").read_text(encoding="utf-8")

    def digest(tag: str) -> str:
        [inside] = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        return base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()

    policy = (
        f"default-src 'none'; script-src 'sha256-{digest('script')}'; style-src 'sha256-{digest('style')}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


async def _page(_request: Request) -> Response:
    page, policy = page_and_policy()
    return HTMLResponse(page, headers={**NO_STORE, "Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"})


def _failed(code: int, why: str) -> Response:
    return JSONResponse({"error": why}, code, NO_STORE)
