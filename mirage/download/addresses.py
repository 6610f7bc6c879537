"""Addresses: which ones may be connected to, and a network backend that connects to no other.

The host is resolved once per connection, every address of the answer is checked, and the socket is
opened to a checked address. TLS still verifies the host's name and HTTP still sends it, because both
take it from the URL; so a name that resolves differently a moment later gains nothing.
"""

import ipaddress
import math
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from mirage.errors import MirageError
from mirage.extras import need

Resolve = Callable[[str, int], list[str]]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

CARRIER_NAT = ipaddress.ip_network("100.64.0.0/10")
# Mapped, compatible, NAT64 and its local form, 6to4, Teredo: the packet may end at any IPv4 address.
TRANSLATED = tuple(
    ipaddress.ip_network(text)
    for text in ("::ffff:0:0/96", "::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")
)

# First match wins; whatever the standard library does not call global stands last.
REFUSALS: dict[str, Callable[[Address], bool]] = {
    "loopback": lambda address: address.is_loopback,
    "unspecified": lambda address: address.is_unspecified,
    "link-local": lambda address: address.is_link_local,
    "multicast": lambda address: address.is_multicast,
    "IPv4 inside IPv6": lambda address: any(address in network for network in TRANSLATED),
    "carrier-grade NAT": lambda address: address in CARRIER_NAT,
    "private": lambda address: address.is_private or getattr(address, "is_site_local", False),
    "reserved": lambda address: address.is_reserved or not address.is_global,
}


class ForbiddenAddress(MirageError):
    """A host has an address that is not public."""


def kind_of_refusal(address: str) -> str | None:
    """What kind of address it is when it is not public, e.g. "loopback"; None for a public one."""
    parsed = ipaddress.ip_address(address)
    return next((kind for kind, test in REFUSALS.items() if test(parsed)), None)


def resolve_host(host: str, port: int) -> list[str]:
    """The host's addresses in the resolver's order; names, dotted and odd numeric forms alike.

    Raises:
        OSError: the host has none.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:  # a label of more than 63 bytes
        raise OSError(f"not a host name: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Deadline(threading.local):
    """The moment at which the calling thread's transfer must have ended; none by default."""

    at = math.inf

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Within the block, the thread's network operations end after so many seconds in all."""
        self.at = time.monotonic() + seconds
        try:
            yield
        finally:
            self.at = math.inf

    def limit(self, timeout: float | None) -> float:
        """The seconds an operation may take, never more than are left.

        Raises:
            TimeoutError: none are left.
        """
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left if timeout is None else min(timeout, left)


class CheckedBackend:
    """A network backend of httpcore that connects to public addresses only, within the deadline."""

    def __init__(self, deadline: Deadline, allow_hosts: Collection[str], resolve: Resolve) -> None:
        self._deadline = deadline
        self._allow_hosts = frozenset(host.lower() for host in allow_hosts)
        self._resolve = resolve
        self._inner = need("httpcore", "urls").SyncBackend()

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> Any:
        """A stream to the first of the host's addresses that answers.

        Raises:
            ForbiddenAddress: any of them is not public, and the host is not allowed one.
        """
        httpcore = need("httpcore", "urls")
        failure: Exception = httpcore.ConnectError(f"the host {host} has no address")
        for address in self._addresses(host, port):
            try:
                stream = self._inner.connect_tcp(address, port, self._deadline.limit(timeout), **options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
                continue
            return _TimedStream(stream, self._deadline)
        raise failure

    def connect_unix_socket(self, path: str, **options: Any) -> Any:
        """Nothing: files of this machine are no public address."""
        raise ForbiddenAddress(f"the socket {path} is no public address")

    def sleep(self, seconds: float) -> None:
        """Wait, as httpcore asks for."""
        time.sleep(seconds)

    def _addresses(self, host: str, port: int) -> list[str]:
        try:
            addresses = self._resolve(host, port)
        except OSError as error:
            reason = error.strerror or error
            raise need("httpcore", "urls").ConnectError(
                f"the host {host} cannot be resolved: {reason}"
            ) from error
        if host.lower() in self._allow_hosts:
            return addresses
        for address in addresses:
            if kind := kind_of_refusal(address):
                raise ForbiddenAddress(
                    f"the host {host} has the {kind} address {address}; only public ones are fetched"
                )
        return addresses


class _TimedStream:
    """A network stream whose every operation ends at the deadline, however slowly bytes drip."""

    def __init__(self, inner: Any, deadline: Deadline) -> None:
        self._inner = inner
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data: bytes = self._inner.read(max_bytes, self._deadline.limit(timeout))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._deadline.limit(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> Any:
        secured = self._inner.start_tls(ssl_context, server_hostname, self._deadline.limit(timeout))
        return _TimedStream(secured, self._deadline)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
