"""Fetching one URL safely: public addresses only, at every redirect, within bytes and seconds."""

import socket
import ssl
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, Self

from pydantic import Field

from mirage.declarations import Part
from mirage.download.addresses import CheckedBackend, Deadline, ForbiddenAddress, Resolve, resolve_host
from mirage.errors import MirageError
from mirage.extras import need

MIB = 2**20
REDIRECTS = frozenset((301, 302, 303, 307, 308))
PASSING = frozenset((408, 425, 429))  # and everything from 500: the next try may succeed
DECODERS = {"gzip": 47, "x-gzip": 47, "deflate": 47}  # zlib's window bits: header found by itself


class FetchSettings(Part):
    """What a fetch may cost and how it introduces itself."""

    user_agent: str = Field(
        default="omniaid-mirage/1 (builds data sets, obeys robots.txt)",
        pattern=r"^[A-Za-z][A-Za-z_-]*(/[ -~]*)?$",
        description="the name that a site's rules address, then a slash and remarks such as a contact",
    )
    max_bytes: int = Field(default=32 * MIB, ge=1, description="of the body, after decompression")
    timeout_s: float = Field(default=30, gt=0, description="of all transfers, redirects included")
    silence_s: float = Field(default=10, gt=0, description="longest wait for a connection or the next bytes")
    max_redirects: int = Field(default=5, ge=0, le=20)
    allow_hosts: tuple[str, ...] = Field(
        default=(), description="host names, as written in the URL, that may have private addresses"
    )


class FetchError(MirageError):
    """A URL was not fetched.

    Attributes:
        url: the one that failed; after a redirect not the one asked for.
        reason: one sentence without the URL.
        retryable: whether another try may succeed.
    """

    retryable = False

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url}: {reason}")
        self.url = url
        self.reason = reason


class FetchRefused(FetchError):
    """Our own rules forbid the URL or its answer; no other try is worth it."""


class FetchFailed(FetchError):
    """The network or the server did not give the bytes.

    Attributes:
        status: of the answer, when there was one.
        wait_s: how long the server asks to wait before the next try.
    """

    def __init__(
        self,
        url: str,
        reason: str,
        *,
        retryable: bool,
        status: int | None = None,
        wait_s: float | None = None,
    ) -> None:
        super().__init__(url, reason)
        self.retryable = retryable
        self.status = status
        self.wait_s = wait_s


@dataclass(frozen=True)
class Fetched:
    """The bytes of one URL.

    Attributes:
        data: the body, decompressed.
        media_type: as the server says, lower case without parameters; "" when it does not.
        final_url: after redirects.
    """

    data: bytes
    media_type: str
    final_url: str


@dataclass(frozen=True)
class Checks:
    """What a caller may look at on the way; either may raise FetchRefused.

    Attributes:
        before: called with the URL before every request, also before that of a redirect.
        answered: called with URL and headers (name, value) of the final answer, before its body.
    """

    before: Callable[[str], None] = lambda url: None
    answered: Callable[[str, Iterable[tuple[str, str]]], None] = lambda url, headers: None


class Fetcher:
    """Fetches URLs over kept connections, from as many threads as like; close it or use `with`.

    Proxies of the environment are not used: a proxy resolves the host itself, out of our sight.
    A name server that does not answer is waited for as long as the system's resolver does.

    Args:
        settings: limits and user agent.
        connections: open at the same time.
        resolve: gives a host's addresses.
        ssl_context: for certificates of an own authority; the public authorities when None.
    """

    def __init__(
        self,
        settings: FetchSettings,
        *,
        connections: int = 16,
        resolve: Resolve = resolve_host,
        ssl_context: Any = None,
    ) -> None:
        self.settings = settings
        self._deadline = Deadline()
        self._pool = need("httpcore", "urls").ConnectionPool(
            ssl_context=ssl_context,
            max_connections=connections,
            keepalive_expiry=5.0,
            network_backend=CheckedBackend(self._deadline, settings.allow_hosts, resolve),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connections."""
        self._pool.close()

    def fetch(self, url: str, checks: Checks = Checks(), *, max_bytes: int | None = None) -> Fetched:
        """What the URL leads to, over at most `max_redirects` redirects.

        Args:
            url: http or https.
            checks: what to look at on the way; time spent there is not counted.
            max_bytes: less than the settings allow.

        Raises:
            FetchRefused: scheme, address, size, number of redirects, or one of the checks.
            FetchFailed: no connection, no answer in time, or a status other than success.
        """
        cap = min(max_bytes or self.settings.max_bytes, self.settings.max_bytes)
        left_s = self.settings.timeout_s
        place = _parse(url, url)
        for _ in range(self.settings.max_redirects + 1):
            checks.before(str(place))
            started = time.monotonic()
            answer = self._request(place, checks, cap, left_s)
            if isinstance(answer, Fetched):
                return answer
            place = answer
            left_s -= time.monotonic() - started
        raise FetchRefused(url, f"more than {self.settings.max_redirects} redirects")

    def _request(self, place: Any, checks: Checks, cap: int, left_s: float) -> Any:
        """What stands at the place, or the place it redirects to."""
        httpcore, httpx = need("httpcore", "urls"), need("httpx", "urls")
        wire = httpcore.URL(
            scheme=place.raw_scheme, host=place.raw_host, port=place.port, target=place.raw_path
        )
        headers = [
            (b"Host", place.netloc),
            (b"User-Agent", self.settings.user_agent.encode("ascii", "replace")),
            (b"Accept", b"*/*"),
            (b"Accept-Encoding", b"identity"),
        ]
        silence = dict.fromkeys(("connect", "read", "write"), self.settings.silence_s) | {"pool": left_s}
        with (
            self._deadline.within(left_s),
            self._as_fetch_errors(str(place)),
            self._pool.stream("GET", wire, headers=headers, extensions={"timeout": silence}) as answer,
        ):
            fields = httpx.Headers(answer.headers)
            if answer.status in REDIRECTS and "location" in fields:
                return _parse(fields["location"], str(place), place)
            if answer.status != 200:
                _fail(str(place), answer.status, fields)
            checks.answered(str(place), fields.multi_items())
            data = _read_body(str(place), answer.iter_stream(), fields, cap)
            media_type = fields.get("content-type", "").partition(";")[0].strip().lower()
            return Fetched(data, media_type, str(place))

    @contextmanager
    def _as_fetch_errors(self, url: str) -> Iterator[None]:
        httpcore = need("httpcore", "urls")
        try:
            yield
        except ForbiddenAddress as error:
            raise FetchRefused(url, str(error)) from error
        except (TimeoutError, httpcore.TimeoutException) as error:
            limits = f"{self.settings.timeout_s:g} s, {self.settings.silence_s:g} s between bytes"
            raise FetchFailed(url, f"no complete answer within {limits}", retryable=True) from error
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            reason = f"the transfer failed: {error or 'connection lost'}"
            raise FetchFailed(url, reason, retryable=not _is_lasting(error.__context__)) from error


def _is_lasting(cause: BaseException | None) -> bool:
    """Whether the cause of a failed transfer is a name that nobody has, or a wrong certificate."""
    unknown = isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME
    return unknown or isinstance(cause, ssl.SSLCertVerificationError)


def _parse(text: str, url: str, base: Any = None) -> Any:
    """The absolute URL in the text, as httpx knows it.

    Raises:
        FetchRefused: it is no http or https URL, or carries a password.
    """
    httpx = need("httpx", "urls")
    try:
        place = (base.join(text) if base is not None else httpx.URL(text)).copy_with(fragment=None)
    except (httpx.InvalidURL, ValueError, TypeError) as error:
        raise FetchRefused(url, f"not a URL: {error}") from error
    if place.scheme not in ("http", "https") or not place.host:
        raise FetchRefused(url, f"{text[:200]} is no http or https URL with a host")
    if (place.port or 0) > 65535:
        raise FetchRefused(url, f"there is no port {place.port}")
    if place.userinfo:
        raise FetchRefused(url, "the URL carries a user name or password")
    return place


def _fail(url: str, status: int, headers: Mapping[str, str]) -> NoReturn:
    raise FetchFailed(
        url,
        f"the server answered with status {status}",
        retryable=status in PASSING or status >= 500,
        status=status,
        wait_s=_retry_after_s(headers.get("retry-after", "")),
    )


def _retry_after_s(value: str) -> float | None:
    """Seconds in a Retry-After header, which holds seconds or a date; None without one."""
    if value.strip().isdecimal():
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _read_body(url: str, chunks: Iterable[bytes], headers: Mapping[str, str], cap: int) -> bytes:
    """The body, decompressed; not a byte more than the cap is kept in memory."""
    size, encoding = headers.get("content-length", ""), headers.get("content-encoding", "identity").lower()
    if size.isdecimal() and int(size) > cap:
        raise FetchRefused(url, f"the answer has {int(size):,} bytes; at most {cap:,} are read")
    if encoding not in ("identity", "", *DECODERS):
        raise FetchFailed(url, f"the answer is encoded as {encoding}, unasked", retryable=False)
    unpack = zlib.decompressobj(DECODERS[encoding]) if encoding in DECODERS else None
    body = bytearray()
    for chunk in chunks:
        try:
            body += unpack.decompress(chunk, cap + 1 - len(body)) if unpack else chunk
        except zlib.error as error:
            raise FetchFailed(url, f"the answer's compression is damaged: {error}", retryable=True) from error
        if len(body) > cap:
            raise FetchRefused(url, f"the answer has more than {cap:,} bytes, the most that are read")
    if unpack and not unpack.eof:
        raise FetchFailed(url, "the answer's compression is cut short", retryable=True)
    return bytes(body)
