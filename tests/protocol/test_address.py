"""The meaning of an address, before any connection."""

import pytest

from workers.protocol.address import Address, AddressError, Topology, parse_address, shown_address, with_options

SENTINEL, CLUSTER = Topology.SENTINEL, Topology.CLUSTER


def test_an_address_of_one_server_is_left_to_redis_py() -> None:
    for url in ("redis://u:p%40@h:1/3?client_name=x", "unix:///run/r.sock?db=1"):
        assert parse_address(url) == Address(Topology.SINGLE, url)
    assert parse_address("rediss://h") == Address(Topology.SINGLE, "rediss://h", tls=True)


@pytest.mark.parametrize(
    ("url", "hosts", "master", "node"),
    [
        ("redis+sentinel://h1:26379,h2,h3/mymaster/0", [("h1", 26379), ("h2", 26379), ("h3", 26379)], "mymaster", "/0"),
        ("redis+sentinel://h1:1/m", [("h1", 1)], "m", "/"),
        ("redis+sentinel://[::1]:1,[fe80::2]/my%20m/3", [("::1", 1), ("fe80::2", 26379)], "my m", "/3"),
    ],
)
def test_sentinels_are_named_with_their_master(url: str, hosts: list[tuple[str, int]], master: str, node: str) -> None:
    assert parse_address(url) == Address(SENTINEL, f"redis://placeholder{node}", False, tuple(hosts), master)


def test_nodes_and_sentinels_have_logins_of_their_own() -> None:
    address = parse_address(
        "rediss+sentinel://u:p%40,%2F@h1,h2/m/1?sentinel_password=s%26t&sentinel_username=v&ssl_ca_certs=/ca.pem"
    )
    assert address.node == "rediss://u:p%40,%2F@placeholder/1?ssl_ca_certs=%2Fca.pem"
    assert (address.tls, dict(address.sentinel_login)) == (True, {"username": "v", "password": "s&t"})
    assert address.hosts == (("h1", 26379), ("h2", 26379))
    assert "p%40" not in repr(address)
    assert "s&t" not in repr(address)


def test_a_cluster_is_named_by_some_of_its_nodes() -> None:
    address = parse_address("rediss+cluster://:p@h1,h2:7/0")
    assert address == Address(CLUSTER, "rediss://:p@placeholder/0", True, (("h1", 6379), ("h2", 7)))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://h", "the scheme must be one of unix://, redis://, rediss://, redis.sentinel://"),
        ("redis+sentinel://h1", "the name of the master is missing"),
        ("redis+sentinel://h1//0", "the name of the master is missing"),
        ("redis+sentinel://h1/m/x", "must be the number of a database"),
        ("redis+sentinel://h1/m/0/0", "must be the number of a database"),
        ("redis+sentinel://h1,,h2/m", "hosts must be host:port"),
        ("redis+sentinel://h1:x/m", "hosts must be host:port"),
        ("redis+sentinel://h1:0/m", "hosts must be host:port"),
        ("redis+sentinel://h1:65536/m", "hosts must be host:port"),
        ("redis+sentinel:///m", "hosts must be host:port"),
        ("redis+sentinel://u:sec/ret@h1/m", "the name of the master is missing|hosts must be"),
        ("redis+sentinel://u:[secret]x@h1/m", "brackets"),
        ("redis+sentinel://h/m?port=1", "unknown option after the .... redis.sentinel:// takes"),
        ("redis+cluster://h/1", "only database 0"),
        ("redis+cluster://h/orders", "must be the number"),
        ("redis://h?sentinel_password=secret", "unknown option after the .... redis:// takes"),
    ],
)
def test_what_cannot_work_is_said_without_a_word_of_a_password(url: str, why: str) -> None:
    with pytest.raises(AddressError, match=why) as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)
    assert "sec/ret" not in shown_address(url)


def test_options_are_added_in_a_way_that_is_read_again() -> None:
    url = with_options("redis+sentinel://h/m?client_name=x", {"sentinel_password": "a b&c+/?@"})
    assert dict(parse_address(url).sentinel_login) == {"password": "a b&c+/?@"}
    assert with_options("redis://h", {}) == "redis://h"
    assert shown_address(url) == "redis+sentinel://h/m?client_name=x&sentinel_password=***"
