"""``reaper groups init``: from an empty Redis to a group and settings that a reaper runs with."""

import stat
import tomllib
from functools import partial
from pathlib import Path

import pytest
from redis.asyncio import Redis

from reaper.cli.init import settings_text
from reaper.settings import ReaperSettings
from tests.operator.conftest import Command, run_command
from tests.support.dump import dump
from tests.support.hostile import EVIL_NAME
from tests.support.servers import RedisServer
from workers.runtime.settings import load_settings

pytestmark = pytest.mark.anyio


class Place:
    """Where it writes its settings, if nobody says otherwise."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "reaper.toml"

    @property
    def text(self) -> str:
        """What stands there; '' where nothing is."""
        return self.path.read_text(encoding="utf-8") if self.path.exists() else ""

    @property
    def mode(self) -> int:
        """Who may read it."""
        return stat.S_IMODE(self.path.stat().st_mode)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path)


async def test_on_an_empty_server_it_makes_all_that_a_reaper_needs(
    reaper: Command, client: Redis, server: RedisServer, file: Place
) -> None:
    answer = await reaper("groups", "init", "orders/billing", "--visibility-timeout", "45")
    assert answer.code == 0
    created, written, _, title, *steps = answer.out.splitlines()
    assert (created, written, title) == ("orders/billing: created", "reaper.toml: written", "next:")
    assert [step.split("#")[0].split()[1] for step in steps] == ["doctor", "run", "status"]
    assert len({step.index("  # ") for step in steps}) == 1

    (group,) = await client.xinfo_groups("orders")
    assert group["name"] == b"billing"
    settings = load_settings(ReaperSettings, file=file.path)
    assert settings.redis_url == server.url
    assert [(one.keys.pair, one.visibility_timeout.total_seconds()) for one in settings.watched] == [
        ("orders/billing", 45)
    ]
    assert file.mode == 0o600


async def test_twice_changes_nothing(reaper: Command, client: Redis, file: Place) -> None:
    await reaper("groups", "init", "orders/billing")
    await client.xadd("orders", {"order": 17})
    await client.xreadgroup("billing", "w1", {"orders": ">"})
    before, text = await dump(client), file.text
    answer = await reaper("groups", "init", "orders/billing", "-o", "json")
    assert answer.data["groups"] == [{"group": "orders/billing", "created": False}]
    assert answer.data["config"] == {"file": "reaper.toml", "written": False}
    assert (await dump(client), file.text) == (before, text)


async def test_a_redelivery_that_fits_is_named_by_the_doctor(reaper: Command, file: Place) -> None:
    pairs = ("orders/billing", "orders/search")
    await reaper("groups", "init", *pairs)
    findings = (await reaper("doctor", "--config", "reaper.toml", "-o", "json")).data["findings"]
    assert [one["group"] for one in findings if one["check"] == "layout" and "retry-stream" in one["text"]] == [*pairs]
    file.path.unlink()
    await reaper("groups", "init", *pairs, "--redelivery", "retry-stream")
    assert "layout" not in (await reaper("doctor", "--config", "reaper.toml")).out


async def test_a_pattern_is_refused(reaper: Command, client: Redis, file: Place) -> None:
    answer = await reaper("groups", "init", "mail/sender", "orders:*/billing")
    assert answer.code == 2
    assert "'orders:*/billing': it is a pattern" in answer.err
    assert (await client.keys(), file.text) == ([], "")


async def test_a_long_timeout_is_written_to_the_second(reaper: Command, file: Place) -> None:
    await reaper("groups", "init", "orders/billing", "--visibility-timeout", "604799.5")
    (group,) = load_settings(ReaperSettings, file=file.path).watched
    assert group.visibility_timeout.total_seconds() == 604_799.5


@pytest.mark.parametrize(("words", "ready"), [((), 1), (("--from", "now"), 0)], ids=["start", "now"])
async def test_a_new_group_gets_what_is_in_the_stream_unless_told_otherwise(
    reaper: Command, client: Redis, file: Place, words: tuple[str, ...], ready: int
) -> None:
    await client.xadd("orders", {"order": 17})
    await reaper("groups", "init", "orders/billing", *words)
    read = await client.execute_command("XREADGROUP", "GROUP", "billing", "w1", "STREAMS", "orders", ">")
    assert len(read or ()) == ready
    assert file.text


async def test_a_file_that_names_other_groups_is_left_alone_and_told_what_to_add(
    reaper: Command, client: Redis, file: Place
) -> None:
    await reaper("groups", "init", "orders/billing")
    before = file.text
    answer = await reaper("groups", "init", "mail/sender")
    assert answer.code == 2
    first, *table = answer.err.splitlines()
    assert first.startswith("error: settings file reaper.toml exists, and does not contain 'mail/sender'. Add ")
    assert tomllib.loads("\n".join(table))["groups"][0]["stream"] == "mail"
    assert (file.text, await client.exists("mail")) == (before, 0), "nothing was done"


async def test_a_key_that_is_no_stream_is_a_sentence(reaper: Command, client: Redis, file: Place) -> None:
    await client.set("orders", "something else")
    answer = await reaper("groups", "init", "orders/billing")
    assert (answer.code, file.text) == (2, "")
    assert answer.err == (
        "error: cannot create group 'orders/billing': key 'orders' is not a stream. "
        "Choose another name, or remove the key.\n"
    )


async def test_who_may_not_create_groups_is_told_who_has_to_do_what(
    client: Redis, server: RedisServer, file: Place
) -> None:
    await client.execute_command("ACL", "SETUSER", "reader", "on", ">pass", "~*", "+@read", "+info", "+client")
    reaper = partial(run_command, f"redis://reader:pass@127.0.0.1:{server.port}/0")
    answer = await reaper("groups", "init", "orders/billing")
    assert (answer.code, file.text) == (2, "")
    assert "XGROUP CREATE orders billing 0 MKSTREAM" in answer.err


@pytest.mark.usefixtures("file")
async def test_a_folder_that_cannot_be_written_to_is_a_sentence(reaper: Command) -> None:
    answer = await reaper("groups", "init", "orders/billing", "--config", "none/reaper.toml")
    assert answer.code == 2
    assert "cannot write settings file none/reaper.toml: No such file or directory" in answer.err


@pytest.mark.parametrize("name", ["orders", EVIL_NAME, '"\\', "früh 🦀"])
def test_whatever_names_are_like_the_file_says_them(name: str) -> None:
    settings = ReaperSettings(groups=({"stream": name, "group": f"billing{name}"},), namespace=f"shop{name}")
    read = tomllib.loads(settings_text("reaper.toml", settings))
    assert (read["groups"][0]["stream"], read["groups"][0]["group"]) == (name, f"billing{name}")
    assert read["namespace"] == f"shop{name}"
    assert ReaperSettings(**read).watched == settings.watched


def test_a_password_is_not_written() -> None:
    url = "redis://reaper:secret@127.0.0.1:6379/0"
    settings = ReaperSettings(redis_url=url, groups="orders/billing")
    text = settings_text("reaper.toml", settings)
    assert "secret" not in text
    assert "redis_url" not in tomllib.loads(text)
