"""Pictures behind URLs, and posts to URLs, without reaching anything that is not public."""

from typing import Any
from urllib.parse import unquote, urlsplit

import httpcore
import httpx

from mirage.download.addresses import CheckedBackend, Deadline, ForbiddenAddress, resolve_host
from mirage.download.fetch import Fetcher, FetchError, FetchRefused, FetchSettings
from service.settings import Settings

USER_AGENT = "omniaid/1"
SILENCE_S = 10.0


class FetchRejected(Exception):
    """A URL gave no picture; the message is one sentence.

    Attributes:
        is_refusal: whether our own rules forbid the URL, so that no other try will help.
    """

    def __init__(self, message: str, is_refusal: bool) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


class Downloads:
    """Fetches pictures; safe to share between threads."""

    def __init__(self, settings: Settings) -> None:
        self._fetcher = Fetcher(
            FetchSettings(
                user_agent=USER_AGENT,
                max_bytes=settings.max_upload_bytes,
                timeout_s=settings.fetch_timeout_s,
                silence_s=min(SILENCE_S, settings.fetch_timeout_s),
                allow_hosts=settings.fetch_hosts,
            )
        )

    def fetch(self, url: str) -> bytes:
        """The bytes behind a URL, over redirects that are checked like the URL itself.

        Raises:
            FetchRejected: it is not public, not there, too large or too slow.
        """
        try:
            return self._fetcher.fetch(url).data
        except FetchError as error:
            # The reason alone: the URL may hold what the sender would not want in a log.
            raise FetchRejected(
                f"the URL was not fetched: {error.reason}", isinstance(error, FetchRefused)
            ) from error

    def close(self) -> None:
        """Close kept connections."""
        self._fetcher.close()


class Posts:
    """Sends small bodies to URLs that callers gave; redirects are not followed."""

    def __init__(self, settings: Settings) -> None:
        self._timeout_s = settings.fetch_timeout_s
        self._deadline = Deadline()
        backend: Any = CheckedBackend(self._deadline, settings.fetch_hosts, resolve_host)
        self._pool = httpcore.ConnectionPool(max_connections=4, network_backend=backend)

    def post(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        """The status of the answer.

        Raises:
            FetchRejected: there was no answer, or the address is not public.
        """
        place = httpx.URL(url)
        given = {"User-Agent": USER_AGENT, "Content-Type": "application/json", **headers}
        fields: list[tuple[bytes | str, bytes | str]] = list(given.items())
        try:
            with self._deadline.within(self._timeout_s):
                answer = self._pool.request("POST", str(place), headers=fields, content=body)
                return int(answer.status)
        except ForbiddenAddress as error:
            raise FetchRejected(str(error), True) from error
        except (
            TimeoutError,
            httpcore.TimeoutException,
            httpcore.NetworkError,
            httpcore.ProtocolError,
        ) as error:
            raise FetchRejected(f"no answer came: {type(error).__name__}", False) from error

    def close(self) -> None:
        """Close kept connections."""
        self._pool.close()


def name_of(url: str) -> str:
    """The last part of a URL's path, as a picture's name; the host when there is none."""
    parts = urlsplit(url)
    return unquote(parts.path.rstrip("/").rpartition("/")[2]) or parts.netloc


def check_url(url: str) -> None:
    """Nothing, when the text is an http or https URL with a host and without a password.

    Raises:
        ValueError: it is not; the message is one sentence.
    """
    try:
        place = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise ValueError(f"it is not a URL: {error}") from error
    if place.scheme not in ("http", "https") or not place.host:
        raise ValueError("it is no http or https URL with a host")
    if place.userinfo:
        raise ValueError("the URL carries a user name or password")
