"""The web server of a replica: probes, and the status page with its data."""

import base64
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files

from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from reaper.operations.explanation import explain
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
    try:
        page = Page(client, reaper)
        routes = [*probe_routes(ReaperVitals(reaper, pulse, client, probing)), *page.routes()]
        yield make_app(routes, settings.health_host)
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


class Page:
    """The status page's routes."""

    def __init__(self, client: Redis, reaper: Reaper) -> None:
        self._client = client
        self._overview = Overview(client, reaper)

    def routes(self) -> list[BaseRoute]:
        """Return them."""
        answers = {"/": _page, "/api/overview": self._answer_overview, "/api/job": self._answer_job}
        return [Route(path, answer, methods=["GET"]) for path, answer in answers.items()]

    async def _answer_overview(self, _request: Request) -> Response:
        try:
            return JSONResponse(await self._overview.look(), headers=NO_STORE)
        except (RedisError, OSError) as error:
            return _failed(503, f"Redis does not answer: {error}")

    async def _answer_job(self, request: Request) -> Response:
        wanted = request.query_params.get("id", "").strip()
        if not 0 < len(wanted) <= LONGEST_ID:
            return _failed(400, f"give a job ID or an entry ID, of {LONGEST_ID} characters at most")
        try:
            snapshot = await self._overview.snapshot()
            found = [
                explain(await find_job(self._client, group.keys, wanted, depth=JOB_DEPTH), group, snapshot)
                for group in snapshot.groups
            ]
        except (RedisError, OSError) as error:
            return _failed(503, f"Redis does not answer: {error}")
        told = [one.as_json() for one in found if one.job.is_known]
        return JSONResponse(told, headers=NO_STORE)


async def _page(_request: Request) -> Response:
    page, policy = page_and_policy()
    return HTMLResponse(page, headers={**NO_STORE, "Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"})


def _failed(code: int, why: str) -> Response:
    return JSONResponse({"error": why}, code, NO_STORE)
