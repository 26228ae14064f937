"""The status page of a replica, with its data."""

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from reaper.operations.explanation import Explanation
from reaper.operations.job_search import find_job
from reaper.operations.judgement import as_json, judge
from reaper.operations.snapshot import take_snapshot
from reaper.operations.state import Snapshot
from reaper.service import Reaper
from workers.protocol.address import shown_address
from workers.protocol.meaning import in_words
from workers.runtime.clock import monotonic
from workers.runtime.health_server import NO_STORE

KEPT_S = 0.8
"""Seconds for which one read of Redis serves all pages."""
JOB_DEPTH = 10_000
LONGEST_ID = 300


class Overview:
    """The data that the page polls. Used in one event loop."""

    def __init__(self, client: Redis, reaper: Reaper) -> None:
        self._client = client
        self._reaper = reaper
        self._looking = anyio.Lock()
        self._looked_at = float("-inf")
        self._found: Mapping[str, Any] = {}

    async def look(self) -> Mapping[str, Any]:
        """Return the document of ``reaper status -o json``. Raises redis-py's errors without contact."""
        async with self._looking:
            if monotonic() - self._looked_at > KEPT_S:
                snapshot = await self.snapshot()
                self._found, self._looked_at = as_json(snapshot, judge(snapshot)), monotonic()
            return self._found

    async def snapshot(self) -> Snapshot:
        """Return the state of the groups, as ``reaper status`` reads it."""
        settings = self._reaper.settings
        return await take_snapshot(self._client, settings.namespace_keys, settings.groups, self._reaper.server)


def page_routes(reaper: Reaper, client: Redis) -> list[BaseRoute]:
    """Return the routes of the page and of its data, which use ``client``."""
    overview = Overview(client, reaper)

    def unreachable(error: Exception) -> Response:
        why = f"Redis at {shown_address(reaper.settings.redis_url)!r} failed: {in_words(error)}"
        return JSONResponse({"status": "unreachable", "error": why}, 503, NO_STORE)

    async def status(_request: Request) -> Response:
        try:
            return JSONResponse(await overview.look(), headers=NO_STORE)
        except (RedisError, OSError) as error:
            return unreachable(error)

    async def job(request: Request) -> Response:
        wanted = request.query_params.get("id", "").strip()
        if not 0 < len(wanted) <= LONGEST_ID:
            why = (
                f"cannot search: the ID is empty or longer than {LONGEST_ID} characters. Give a job ID or an entry ID."
            )
            return JSONResponse({"status": "invalid", "error": why}, 400, NO_STORE)
        try:
            snapshot = await overview.snapshot()
            jobs = [(group, await find_job(client, group.keys, wanted, depth=JOB_DEPTH)) for group in snapshot.groups]
        except (RedisError, OSError) as error:
            return unreachable(error)
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
