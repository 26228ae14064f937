"""The web server of a replica: probes, the status page with its data, and its actions."""

import base64
import hashlib
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache, partial
from importlib.resources import files
from typing import Any

import anyio
from redis.asyncio import Redis
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route

from reaper.operations.explanation import explain
from reaper.operations.job_search import find_job
from reaper.service import Reaper
from reaper.web.actions import Actions, is_token, known_group
from reaper.web.letters import letters_of, one_letter
from reaper.web.overview import Overview
from reaper.web.vitals import ReaperVitals
from workers.protocol.connection import commands_client
from workers.protocol.errors import ConfigurationError
from workers.protocol.log_fields import fields
from workers.runtime.health_server import NO_STORE, Pulse, make_app, probe_routes

logger = logging.getLogger(__name__)

REDIS_TIMEOUT_S = 2.0
JOB_DEPTH = 10_000
LONGEST_ID = 300
LARGEST_BODY = 65_536
WRONG_TOKEN_S = 0.5
"""What a wrong token costs whoever guesses."""


@asynccontextmanager
async def replica_app(reaper: Reaper, pulse: Pulse, token: bytes | None) -> AsyncIterator[Starlette]:
    """Make the app, with Redis clients of its own, for the loop it is served in. Pages keep no probe waiting."""
    settings = reaper.settings
    client = commands_client(settings.redis_url, timeout_s=REDIS_TIMEOUT_S, max_connections=4)
    home = settings.namespace_keys.replicas
    probing = commands_client(settings.redis_url, key=home, timeout_s=REDIS_TIMEOUT_S, max_connections=1)
    try:
        page = Page(client, reaper, token)
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


Act = Callable[[Mapping[str, Any]], Awaitable[str]]


class Page:
    """The status page's routes."""

    def __init__(self, client: Redis, reaper: Reaper, token: bytes | None) -> None:
        self._client = client
        self._token = token
        self._reaper = reaper
        self._overview = Overview(client, reaper)
        self._actions = Actions(client, reaper)

    def routes(self) -> list[BaseRoute]:
        """Return them."""
        actions: dict[str, Act] = {
            "pause": partial(self._actions.set_paused, paused=True),
            "resume": partial(self._actions.set_paused, paused=False),
            "redrive": self._actions.redrive,
            "drain": self._actions.drain,
            "undo-drain": self._actions.undo_drain,
        }
        return [
            Route("/", _page, methods=["GET"]),
            Route("/api/overview", self._answer_overview, methods=["GET"]),
            Route("/api/job", self._answer_job, methods=["GET"]),
            Route("/api/dead-letters", self._answer_letters, methods=["GET"]),
            *(Route(f"/api/{name}", self._acting(name, act), methods=["POST"]) for name, act in actions.items()),
        ]

    async def _answer_overview(self, _request: Request) -> Response:
        try:
            found = await self._overview.look()
        except (RedisError, OSError) as error:
            return _failed(503, f"Redis does not answer: {error}")
        return JSONResponse({**found, "actions": self._token is not None}, headers=NO_STORE)

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

    async def _answer_letters(self, request: Request) -> Response:
        """Answer with those of a reason, or with one (``id``)."""
        asked = request.query_params
        try:
            keys = await known_group(self._client, self._reaper.settings, asked.get("group"))
            if "id" in asked:
                letter = await one_letter(self._client, keys, asked["id"])
                found = None if letter is None else [letter]
            else:
                found = await letters_of(self._client, keys, asked.get("reason", ""))
        except ConfigurationError as error:
            return _failed(400, str(error))
        except (RedisError, OSError) as error:
            return _failed(503, f"Redis does not answer: {error}")
        if found is None:
            return _failed(404, "it is not there any more: it was redriven or purged")
        return JSONResponse(found, headers=NO_STORE)

    def _acting(self, name: str, act: Act) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            refusal = await self._refuse(request)
            if refusal:
                return refusal
            try:
                sent = await _read_json(request)
                told = await act(sent)
            except ConfigurationError as error:
                return _failed(400, str(error))
            except (RedisError, OSError) as error:
                logger.warning("action of the status page failed: %s", fields(action=name, cause=error))
                return _failed(503, f"Redis refuses or does not answer: {error}")
            self._overview.forget()
            return JSONResponse({"told": told}, headers=NO_STORE)

        return answer

    async def _refuse(self, request: Request) -> Response | None:
        """Return the rejection of a request for an action, or None if it is allowed."""
        if self._token is None:
            return _failed(403, "actions are off: set actions_token_file")
        origin = request.headers.get("origin")
        if origin and origin.partition("://")[2] != request.headers.get("host"):
            return _failed(403, "this came from another site's page")
        if not is_token(self._token, request.headers.get("authorization", "")):
            await anyio.sleep(WRONG_TOKEN_S)
            logger.warning("action of the status page rejected: wrong token")
            return _failed(401, "the token is wrong")
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _failed(415, "send JSON")
        return None


async def _page(_request: Request) -> Response:
    page, policy = page_and_policy()
    return HTMLResponse(page, headers={**NO_STORE, "Content-Security-Policy": policy, "Referrer-Policy": "no-referrer"})


def _failed(code: int, why: str) -> Response:
    return JSONResponse({"error": why}, code, NO_STORE)


async def _read_json(request: Request) -> Mapping[str, Any]:
    """Read a JSON object. Raises ConfigurationError."""
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > LARGEST_BODY:
                raise ConfigurationError(f"the request is too large. Send at most {LARGEST_BODY} bytes.")
    except ClientDisconnect as error:
        raise ConfigurationError("the request is incomplete. Send it again.") from error
    try:
        sent = json.loads(body or b"{}")
    except ValueError as error:
        raise ConfigurationError("the request is not JSON. Send a JSON object.") from error
    if not isinstance(sent, dict):
        raise ConfigurationError("the request is not an object. Send a JSON object.")
    return sent
