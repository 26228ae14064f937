"""The status page of a replica, with its data."""

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from reaper.operations.explanation import Explanation
from reaper.operations.job_search import find_job
from reaper.service import Reaper
from reaper.web.overview import Overview
from workers.protocol.address import shown_address
from workers.runtime.health_server import NO_STORE

JOB_DEPTH = 10_000
LONGEST_ID = 300


def page_routes(reaper: Reaper, client: Redis) -> list[BaseRoute]:
    """Return the page, and the data that it asks for. Only the pages use ``client``."""
    overview = Overview(client, reaper)

    async def status(_request: Request) -> Response:
        try:
            return JSONResponse(await overview.look(), headers=NO_STORE)
        except (RedisError, OSError) as error:
            address = shown_address(reaper.settings.redis_url)
            why = f"Redis at {address!r} failed: {error}"
            return JSONResponse({"status": "unreachable", "error": why}, 503, NO_STORE)

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

    return [Route("/", _page), Route("/status", status), Route("/api/job", job)]


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
