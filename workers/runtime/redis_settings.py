"""The settings of a connection to Redis. Certificates and logins become options of one address, ``redis_url``."""

import os
from typing import Any, ClassVar, TypedDict
from urllib.parse import parse_qsl

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from workers.protocol.address import SHARED_URL, with_options
from workers.runtime.settings import ADDRESS, Settings

DEFAULT_URL = "redis://127.0.0.1:6379/0"
PREFIX = "REAPER_"
"""The prefix of all our variables, for `worker` as well as for `reaper`. No other program uses it."""

_TLS = {
    "redis_ca_file": "ssl_ca_certs",
    "redis_cert_file": "ssl_certfile",
    "redis_key_file": "ssl_keyfile",
    "redis_key_password": "ssl_password",
}
_SENTINELS = {"sentinel_username": "sentinel_username", "sentinel_password": "sentinel_password"}
"""Options of an address by the settings that they are made of."""


class RedisArguments(TypedDict, total=False):
    """The arguments of `RedisSettings`, as type checkers see them."""

    redis_url: str
    redis_ca_file: str
    redis_cert_file: str
    redis_key_file: str
    redis_key_password: str
    sentinel_username: str
    sentinel_password: str


class RedisSettings(Settings):
    """Base of settings with a Redis in them."""

    redis_url: str = Field(
        default=DEFAULT_URL,
        repr=False,
        description="Address of Redis, of its Sentinels, or of nodes of a cluster. Read from a file, its password is "
        "read again at each connect.",
    )
    redis_ca_file: str = Field(
        default="",
        description="PEM file of authorities that sign the certificates of Redis and its Sentinels, besides "
        "those that the system trusts.",
    )
    redis_cert_file: str = Field(
        default="", description="PEM file of our own certificate, where Redis asks for one. Read at each connect."
    )
    redis_key_file: str = Field(default="", description="PEM file of the key to `redis_cert_file`.")
    redis_key_password: str = Field(default="", repr=False, description="Password of `redis_key_file`, if it has one.")
    sentinel_username: str = Field(default="", description="User at the Sentinels themselves, where they have users.")
    sentinel_password: str = Field(
        default="", repr=False, description="Password at the Sentinels themselves; that of Redis is in `redis_url`."
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        *_others: Any,
        **_named: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Add `REDIS_URL` as the weakest source of the address."""
        shared = os.environ.get(SHARED_URL)
        return init_settings, env_settings, InitSettingsSource(settings_cls, {ADDRESS: shared} if shared else {})

    @model_validator(mode="before")
    @classmethod
    def _one_address(cls, given: Any) -> Any:
        """Put the other settings into ``redis_url``, as its options."""
        if not isinstance(given, dict) or not isinstance(given.get(ADDRESS, DEFAULT_URL), str):
            return given  # pydantic says so
        url = given.get(ADDRESS, cls.model_fields[ADDRESS].default).strip()
        scheme, _, rest = url.partition("://")
        for names, fits, which in (
            (_TLS, scheme.startswith("rediss"), "rediss://, rediss+sentinel:// or rediss+cluster://"),
            (_SENTINELS, scheme.endswith("+sentinel"), "redis+sentinel:// or rediss+sentinel://"),
        ):
            misplaced = [name for name in names if given.get(name)]
            if misplaced and not fits:
                raise ValueError(f"{misplaced[0]} is for a redis_url that begins with {which}")
        options = {option: given[name] for name, option in (_TLS | _SENTINELS).items() if given.get(name)}
        known = parse_qsl(rest.partition("?")[2], keep_blank_values=True)
        new = {option: value for option, value in options.items() if (option, value) not in known}
        return {**given, ADDRESS: with_options(url, new)} if new or ADDRESS in given else given


class ProgramSettings(RedisSettings):
    """Base of the settings of `reaper` and `worker`, which share the prefix and the file.

    A setting that both have means the same for both. Each program ignores the settings that only the other one has.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix=PREFIX)
    siblings: ClassVar[tuple[str, ...]] = ("reaper.settings:ReaperSettings", "workers.settings:WorkerSettings")
    other_env: ClassVar[frozenset[str]] = frozenset({f"{PREFIX}FAILPOINTS", f"{PREFIX}CONFIG"})
    other_prefixes: ClassVar[tuple[str, ...]] = (f"{PREFIX}PIPELINE_",)
