"""What a site's owner asks of programs: robots.txt, and the X-Robots-Tag header of an answer."""

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from mirage.download.fetch import FetchError, FetchFailed, FetchRefused
from mirage.extras import need

MEMORY = 10_000  # origins whose rules are remembered
# The four that img2dataset honours by default, and `none`, which stands for noindex and nofollow.
FORBIDDING = frozenset(("noai", "noimageai", "noindex", "noimageindex", "none"))
VALUED = frozenset(("max-snippet", "max-image-preview", "max-video-preview", "unavailable_after"))
TOKEN = re.compile(r"[a-z0-9_.*-]+")


class RobotsUnknown(FetchFailed):
    """A site's robots.txt cannot be read although it may have one, so nothing is fetched there."""


@dataclass(frozen=True)
class _Unknown:
    """Why a site's rules are not known."""

    reason: str
    retryable: bool


class Robots:
    """The robots.txt of every site met, read once and kept for later questions of any thread.

    As RFC 9309 says: a status of 4xx means that there are no rules; a server that fails or does not
    answer means that everything is forbidden.

    Args:
        read: gives the text behind a URL, or raises FetchError; patience is its own matter.
        user_agent: of our requests; what stands before the slash is the name that rules address.
    """

    def __init__(self, read: Callable[[str], bytes], user_agent: str) -> None:
        self._read = read
        self._token = token_of(user_agent)
        self._rules: OrderedDict[str, Future[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def check(self, url: str) -> float:
        """The seconds that the site wants between two requests, 0 without such a wish.

        Raises:
            FetchRefused: robots.txt forbids the URL.
            RobotsUnknown: it cannot be read.
        """
        rules = self._rules_for(url)
        if rules is None:
            return 0.0
        if isinstance(rules, _Unknown):
            raise RobotsUnknown(url, rules.reason, retryable=rules.retryable)
        if not rules.can_fetch(url, self._token):
            raise FetchRefused(url, f"robots.txt forbids it to {self._token}")
        rate = rules.request_rate(self._token)
        return max(rules.crawl_delay(self._token) or 0.0, rate.seconds / rate.requests if rate else 0.0)

    def _rules_for(self, url: str) -> Any:
        """The parsed rules of the URL's site, None when it has none, or why they are not known."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        with self._lock:
            known = self._rules.get(origin)
            future: Future[Any] = known or Future()
            self._rules[origin] = future
            self._rules.move_to_end(origin)
            if len(self._rules) > MEMORY:
                self._rules.popitem(last=False)
        if known is None:
            try:
                future.set_result(self._load(f"{origin}/robots.txt"))
            except BaseException as error:
                future.set_exception(error)
        return future.result()

    def _load(self, url: str) -> Any:
        try:
            text = self._read(url).decode("utf-8", "replace")
        except FetchError as error:
            refused = isinstance(error, FetchFailed) and 400 <= (error.status or 0) < 500
            if refused and not error.retryable:
                return None
            return _Unknown(f"robots.txt of the site cannot be read: {error.reason}", error.retryable)
        return need("protego", "urls").Protego.parse(text)


def token_of(user_agent: str) -> str:
    """The name that a site's rules address: what stands before the slash, lower case."""
    return user_agent.partition("/")[0].strip().lower()


def check_headers(url: str, headers: Iterable[tuple[str, str]], user_agent: str) -> None:
    """Nothing, when no X-Robots-Tag header forbids the use of the answer to us or to everyone.

    A header is a list of directives, each perhaps after the name of the program it is meant for:
    `noai`, `noindex, noai`, `otherbot: noindex, nofollow`. A name holds up to the next one.

    Raises:
        FetchRefused: one of them does.
    """
    ours = (None, "*", token_of(user_agent))
    for name, value in headers:
        if name.lower() == "x-robots-tag":
            for program, directive in _directives(value):
                if directive in FORBIDDING and program in ours:
                    raise FetchRefused(url, f"its X-Robots-Tag header says {directive}")


def _directives(value: str) -> Iterable[tuple[str | None, str]]:
    """Directives with the program each is meant for, None for everyone."""
    program: str | None = None
    for piece in value.lower().split(","):
        head, colon, rest = (part.strip() for part in piece.partition(":"))
        if colon and head not in VALUED and TOKEN.fullmatch(head):
            program, head = head, rest
        yield program, head
