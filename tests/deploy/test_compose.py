"""The compose file mounts existing files, and every service has a health check and few rights."""

from typing import Any

import pytest

from tests.deploy.assets import COMPOSE, DEPLOY, document, instructions
from tests.support.processes import ROOT

WHOLE: dict[str, Any] = document(COMPOSE)
SERVICES: dict[str, dict[str, Any]] = WHOLE["services"]
MADE_FIRST = "./secrets/"
"""What `make-users` writes."""

each_service = pytest.mark.parametrize("name", SERVICES)


@each_service
def test_a_service_may_do_nothing_but_its_work(name: str) -> None:
    service = SERVICES[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]


@each_service
def test_what_it_uses_is_declared(name: str) -> None:
    service = SERVICES[name]
    assert {one["source"] for one in service.get("configs", [])} <= set(WHOLE["configs"])
    assert set(service.get("secrets", [])) <= set(WHOLE["secrets"])
    assert set(service.get("networks", [])) <= {*WHOLE["networks"], "default"}
    assert set(service.get("depends_on", {})) <= set(SERVICES)
    named = [value for key, value in service.get("environment", {}).items() if key.endswith("_FILE")]
    assert [value.rsplit("/", 1)[1] for value in named] == service.get("secrets", [])[: len(named)]


def test_what_is_mounted_is_there() -> None:
    files = [one["file"] for one in WHOLE["configs"].values()]
    files += [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    here = [file for file in files if file.startswith(".") and not f"{file}/".startswith(MADE_FIRST)]
    assert [file for file in here if not (COMPOSE.parent / file).is_file()] == []
    assert all(one["file"].startswith(MADE_FIRST) for one in WHOLE["secrets"].values())
    assert "/deploy/compose/secrets/" in (ROOT / ".gitignore").read_text().splitlines()


def test_ours_are_built_here_and_wait_for_a_healthy_redis() -> None:
    for name in ("reaper", "worker"):
        service = SERVICES[name]
        build = service["build"]
        assert (COMPOSE.parent / build["context"]).resolve() == ROOT
        assert (ROOT / build["dockerfile"]).is_file()
        assert service["depends_on"] == {"redis": {"condition": "service_healthy"}}
    assert any(instruction == "HEALTHCHECK" for instruction, _ in instructions())
    assert SERVICES["redis"]["healthcheck"]["test"][0] == "CMD"


def test_what_is_added_for_tls_fits_in() -> None:
    added = document(COMPOSE.with_name("compose.tls.yaml"))
    assert set(added["services"]) == set(SERVICES)
    assert {name for one in added["services"].values() for name in one.get("secrets", [])} == set(added["secrets"])
    for name, service in added["services"].items():
        files = [value.rsplit("/", 1)[1] for value in service.get("environment", {}).values()]
        assert sorted(files) == (sorted(service["secrets"]) if files else []), name
    assert "/deploy/compose/certificates/" in (ROOT / ".gitignore").read_text().splitlines()


def test_redis_keeps_jobs() -> None:
    lines = (DEPLOY / "redis/redis.conf").read_text().splitlines()
    settings = dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    asked = ("appendonly", "maxmemory-policy", "aclfile", "protected-mode")
    assert [settings[name] for name in asked] == ["yes", "noeviction", "/run/secrets/users.acl", "no"]
    assert SERVICES["redis"]["command"] == ["redis-server", "/usr/local/etc/redis/redis.conf"]
    assert SERVICES["redis"]["secrets"] == ["users.acl"]
