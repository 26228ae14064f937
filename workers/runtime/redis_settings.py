"""The settings of a connection to Redis. Certificates become options of the address, ``redis_url``."""

import os
from typing import Any, ClassVar, TypedDict
from urllib.parse import parse_qsl

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from workers.protocol.address import SHARED_URL, with_options
from workers.runtime.settings import ADDRESS, Settings

DEFAULT_URL = "redis://127.0.0.1:6379/0"
PREFIX = "REAPER_"
"""The prefix of the environment variables of all our programs."""

_TLS = {
    "redis_ca_file": "ssl_ca_certs",
    "redis_cert_file": "ssl_certfile",
    "redis_key_file": "ssl_keyfile",
}
"""Options of an address by the settings that set them."""


class RedisArguments(TypedDict, total=False):
    """The arguments of `ProgramSettings`, as type checkers see them."""

    redis_url: str
    redis_ca_file: str
    redis_cert_file: str
    redis_key_file: str


class ProgramSettings(Settings):
    """Base of the settings of `reaper`, `worker` and `reaper pipeline`, which share the prefix and the file.

    A setting that two programs have means the same for both. Each program ignores the settings of the others.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(env_prefix=PREFIX)
    siblings: ClassVar[tuple[str, ...]] = (
        "reaper.settings:ReaperSettings",
        "workers.settings:WorkerSettings",
        "reaper.pipeline.settings:PipelineSettings",
    )
    other_env: ClassVar[frozenset[str]] = frozenset({f"{PREFIX}FAILPOINTS", f"{PREFIX}CONFIG"})

    redis_url: str = Field(
        default=DEFAULT_URL,
        repr=False,
        description="Address of Redis, of its Sentinels, or of nodes of a cluster. If it comes from a file, its "
        "password is read again at each connect.",
    )
    redis_ca_file: str = Field(
        default="",
        description="PEM file of authorities that sign the certificates of Redis and its Sentinels, in addition to "
        "those that the system trusts.",
    )
    redis_cert_file: str = Field(
        default="", description="PEM file of the client certificate, if Redis asks for one. Read at each connect."
    )
    redis_key_file: str = Field(default="", description="PEM file of the key to `redis_cert_file`.")

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
        """Add the certificate files to ``redis_url``, as its options."""
        if not isinstance(given, dict) or not isinstance(given.get(ADDRESS, DEFAULT_URL), str):
            return given  # pydantic says so
        url = given.get(ADDRESS, cls.model_fields[ADDRESS].default).strip()
        scheme, _, rest = url.partition("://")
        options = {option: given[name] for name, option in _TLS.items() if given.get(name)}
        if options and not scheme.startswith("rediss"):
            name = next(name for name, option in _TLS.items() if option in options)
            raise ValueError(f"{name} needs TLS. Set redis_url to rediss://, rediss+sentinel:// or rediss+cluster://")
        known = parse_qsl(rest.partition("?")[2], keep_blank_values=True)
        new = {option: value for option, value in options.items() if (option, value) not in known}
        return {**given, ADDRESS: with_options(url, new)} if new or ADDRESS in given else given
