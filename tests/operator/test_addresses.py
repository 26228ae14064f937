"""A password in an address is printed by no command, no error and no log line, however the address is written."""

import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reaper.cli.main import main as reaper
from reaper.pipeline.redis_stream.errors import RedisStreamError
from reaper.pipeline.redis_stream.options import Options
from reaper.pipeline.settings import PipelineSettings
from reaper.settings import ReaperSettings
from workers import SyncProducer, WorkerSettings
from workers.cli import main as worker
from workers.protocol.address import AddressError, parse_address, shown_address
from workers.protocol.connection import blocking_client, commands_client, reader_client
from workers.protocol.errors import ConfigurationError, StreamReaperError
from workers.runtime.logs import ConsoleFormatter, JsonFormatter
from workers.runtime.settings import load_settings

PW = "s3cr3tPW"
AZURE = "orders.redis.cache.windows.net:6380"
NOBODY = "127.0.0.1:1"
"""Where no server listens."""

CANNOT_BE_PARSED = (
    # the forms that Azure, StackExchange.Redis and redis-cli show
    f"{AZURE},password={PW},ssl=True,abortConnect=False",
    f"{AZURE},password={PW}a/b+c=,ssl=True,abortConnect=False",
    f"{AZURE}, Password = {PW}, ssl=True",
    f"password={PW},{AZURE},ssl=True",
    f"redis://{AZURE},password={PW},ssl=True",
    f"rediss://{AZURE},password={PW}?x=y,ssl=True",
    f"redis+sentinel://{NOBODY},password={PW},ssl=True/mymaster",
    f"127.0.0.1:6379,password={PW}",
    f"redis-cli -h 127.0.0.1 -a {PW}",
    f"redis-cli -u redis://:{PW}@127.0.0.1:6379",
    f"REDIS_URL=redis://:{PW}@127.0.0.1:6379",
    f'"redis://:{PW}@127.0.0.1:6379"',
    f"127.0.0.1 6379 {PW}",
    # no scheme, or another one
    f"default:{PW}@127.0.0.1:6379",
    f":{PW}@127.0.0.1:6379/0",
    f"{PW}@127.0.0.1:6379",
    f"{PW}:default@127.0.0.1:6379",
    f"{PW}://127.0.0.1:6379",
    f"redis:{PW}@127.0.0.1",
    f"redis:/:{PW}@127.0.0.1",
    f"http://:{PW}@127.0.0.1:6379",
    f"REDIS://:{PW}@127.0.0.1:6379",
    f"jdbc:redis://:{PW}@127.0.0.1:6379",
    f"rediss+unix://:{PW}@127.0.0.1",
    f"//:{PW}@127.0.0.1",
    PW,
    # no host, or none that can be
    f"redis://:{PW}",
    f"redis://default:{PW}",
    f"redis://:{PW}@",
    f"redis://:{PW}@:6379/0",
    f"redis://:{PW}@127.0.0.1:{PW}",
    f"redis://:{PW}@127.0.0.1:99999",
    f"redis://127.0.0.1:6379:{PW}",
    f"redis://:{PW}@two words:6379",
    f"redis://:{PW}@h1:6379,h2:6379",
    f"redis+sentinel://:{PW}@h1:26379",
    f"redis+cluster://:{PW}@h1:x,h2",
    f"unix://:{PW}@run/redis.sock",
    # characters that must be percent-encoded
    f"redis://:{PW}\nx@127.0.0.1:6379",
    f"redis://:x\n{PW}@127.0.0.1:6379",
    f"redis://:{PW}\tx@127.0.0.1:6379",
    f"redis://:{PW}\x7f@127.0.0.1:6379",
    f"redis://:a/{PW}@127.0.0.1:6379/0",
    f"redis://:{PW}/x@127.0.0.1:6379/0",
    f"redis://:a#{PW}@127.0.0.1:6379/0",
    f"redis://:{PW}#x@127.0.0.1:6379/0",
    f"redis://:a?{PW}@127.0.0.1:6379/0",
    f"redis://:{PW}?x=y@127.0.0.1:6379/0",
    f"redis://h?{PW}=1@127.0.0.1:6379/0",
    f"redis://:[{PW}@127.0.0.1:6379/0",
    f"redis://:{PW}\uff20127.0.0.1:6379/0",
    f"redis+sentinel://:a/{PW}@h1:26379/mymaster",
    # a database or an option that cannot be
    f"redis://127.0.0.1:6379/{PW}",
    f"redis://127.0.0.1:6379/0/{PW}",
    f"redis://127.0.0.1:6379/0#{PW}",
    f"redis://127.0.0.1:6379/0?{PW}",
    f"redis://127.0.0.1:6379/0?{PW}=1",
    f"redis://127.0.0.1:6379/0?passwort={PW}",
    f"redis://127.0.0.1:6379/0?ssl_password={PW}",
    f"redis://127.0.0.1:6379/0?password={PW}&password={PW}",
)
CAN_BE_PARSED = (
    f"redis://{PW}@{NOBODY}",
    f"redis://:{PW}@{NOBODY}/0",
    f"redis://default:{PW}@{NOBODY}/0",
    f"redis://{PW}:@{NOBODY}",
    f"redis://{PW}:{PW}@{NOBODY}/0",
    f" redis://:{PW}@{NOBODY}/0\n",
    f"redis://:a@{PW}@{NOBODY}",
    f"redis://:{PW}@x@{NOBODY}",
    f"redis://:a b{PW}@{NOBODY}",
    f"redis://{NOBODY}?password={PW}",
    f"redis://{NOBODY}/0?db=0&password={PW}&username={PW}",
    f"redis://{NOBODY}?pass%77ord={PW}",
    f"rediss://:{PW}@{NOBODY}/0",
    f"rediss://{NOBODY}?ssl_password={PW}",
    f"redis+sentinel://:{PW}@{NOBODY}/mymaster/0",
    f"redis+sentinel://{NOBODY}/mymaster/0?sentinel_username={PW}&sentinel_password={PW}",
    f"redis+cluster://default:{PW}@{NOBODY}",
    f"unix://:{PW}@/nowhere/redis.sock",
    f"unix:///nowhere/redis.sock?password={PW}&db=0",
)
PAIR = "orders/billing"
COMMANDS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (reaper, ("run", "--groups", "orders/billing")),
    (reaper, ("groups", "create", "orders/billing")),
    (reaper, ("status",)),
    (reaper, ("status", "-o", "json")),
    (reaper, ("doctor", "--groups", "orders/billing")),
    (reaper, ("explain", "order-17", "--group", PAIR)),
    (reaper, ("groups", "pause", "orders/billing")),
    (reaper, ("dead-letters", "list", PAIR, "-o", "json")),
    (reaper, ("drill",)),
    (worker, ("run", "tests.workers.program")),
)


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Search what is logged for the password, as both log formats write it."""
    monkeypatch.chdir(tmp_path)
    with caplog.at_level(logging.DEBUG):
        yield
    for formatter in (ConsoleFormatter(), JsonFormatter()):
        for record in caplog.records:
            assert_hidden(formatter.format(record))


def assert_hidden(text: str) -> None:
    """Require that no part of the password is there."""
    assert PW.lower() not in text.lower(), text


def run(program: Any, *words: str, **env: str) -> str:
    result = CliRunner(env=env).invoke(program, words)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output + result.stderr


@pytest.mark.parametrize(
    ("url", "first"), [(url, at % 3) for at, url in enumerate([*CANNOT_BE_PARSED, *CAN_BE_PARSED])]
)
def test_no_command_prints_it(url: str, first: int) -> None:
    """Every third command gets an address: each command gets many, and each address several commands."""
    for program, words in COMMANDS[first::3]:
        printed = run(program, *words, "--redis-url", url)
        assert_hidden(printed)
        assert "redis" in printed.lower(), "it says something about Redis"


@pytest.mark.parametrize("url", [*CANNOT_BE_PARSED, *CAN_BE_PARSED])
def test_no_command_prints_it_from_the_environment_or_a_file(url: str, tmp_path: Path) -> None:
    (tmp_path / "url").write_text(url)
    (tmp_path / "reaper.toml").write_text(f"redis_url = '''{url}'''\n".replace("\x7f", "\\u007f"))
    for env in ({"REAPER_REDIS_URL": url}, {"REDIS_URL": url}, {"REAPER_REDIS_URL_FILE": str(tmp_path / "url")}):
        assert_hidden(run(reaper, "status", **env))
    assert_hidden(run(reaper, "status", "--config", str(tmp_path / "reaper.toml")))


@pytest.mark.parametrize("url", [*CANNOT_BE_PARSED, *CAN_BE_PARSED])
def test_no_command_prints_it_where_no_address_belongs(url: str) -> None:
    for program, words in (
        (reaper, (url,)), (reaper, ("status", url)), (reaper, (f"--redis-url={url}", "status")), (worker, ("run", url)),
        (reaper, ("run", "--groups", "a/b", "--lease-ttl", url)), (worker, ("run", "tests.workers.program", url)),
        (reaper, ("status", "-o", "json", url)),
    ):  # fmt: skip
        if "@" in url or "password=" in url:
            assert_hidden(run(program, *words))


@pytest.mark.parametrize("url", CANNOT_BE_PARSED)
def test_a_program_that_gives_it_gets_an_error_whose_traceback_does_not_quote_it(url: str) -> None:
    makers: tuple[Callable[[], object], ...] = (
        lambda: commands_client(url),
        lambda: reader_client(url),
        lambda: blocking_client(url),
        lambda: SyncProducer("orders", url),
        lambda: Options.parse({"url": url, "stream": "orders"}),
    )
    for make in makers:
        with pytest.raises((StreamReaperError, RedisStreamError)) as caught:
            make()
        assert_hidden("".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize("url", [*CANNOT_BE_PARSED, *CAN_BE_PARSED])
def test_settings_do_not_show_it(url: str) -> None:
    for settings in (
        ReaperSettings(redis_url=url),
        PipelineSettings(redis_url=url),
        WorkerSettings(stream="orders", group="billing", redis_url=url),
    ):
        assert_hidden(f"{settings!r} {settings}")
    with pytest.raises(ConfigurationError) as caught:
        load_settings(ReaperSettings, arguments={"redis_url": [url]})
    assert_hidden("".join(traceback.format_exception(caught.value)))
    with pytest.raises(ConfigurationError) as caught:
        load_settings(ReaperSettings, arguments={"redis_url": url, "max_deliveries": 0})
    assert_hidden("".join(traceback.format_exception(caught.value)))


@pytest.mark.parametrize("url", CANNOT_BE_PARSED)
def test_nothing_but_the_scheme_of_an_address_that_cannot_be_parsed_is_shown(url: str) -> None:
    with pytest.raises(AddressError):
        parse_address(url)
    scheme = url.partition("://")[0]
    known = scheme in ("redis", "rediss", "redis+sentinel", "redis+cluster", "unix")
    assert shown_address(url) == (f"{scheme}://***" if known else "***")


@pytest.mark.parametrize("url", CAN_BE_PARSED)
def test_an_address_that_can_be_parsed_is_shown_with_its_hosts(url: str) -> None:
    parse_address(url)
    assert "***" in shown_address(url)
    assert NOBODY in shown_address(url) or "/nowhere/redis.sock" in shown_address(url)


def test_words_of_others_are_logged_without_logins(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError(f"cannot connect to https://user:{PW}@127.0.0.1/x")
    logging.getLogger("shop").error("failed at redis://:%s@127.0.0.1", PW, exc_info=error)
    assert caplog.records
