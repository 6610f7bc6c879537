"""Downloads: URLs fetched politely and patiently, each once; bytes and failures are kept on disk."""

import errno
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field

from mirage.download.fetch import (
    Checks,
    Fetched,
    Fetcher,
    FetchError,
    FetchFailed,
    FetchRefused,
    FetchSettings,
)
from mirage.download.robots import Robots, RobotsUnknown, check_headers
from mirage.shards import write_atomically

NOT_PICTURES = frozenset(("text/html", "application/xhtml+xml", "application/json"))


class DownloadSettings(FetchSettings):
    """How downloads spare the sites they come from, besides the limits of one fetch."""

    workers: int = Field(default=8, ge=1, le=64, description="downloads at the same time")
    host_gap_s: float = Field(
        default=0.5,
        ge=0,
        description="between the starts of two requests to a host; robots.txt may want more",
    )
    retries: int = Field(default=3, ge=0, le=10, description="after a failure that may pass")
    backoff_s: float = Field(
        default=1.0, ge=0, description="before the first retry; doubled for each further"
    )
    max_wait_s: float = Field(default=60, ge=0, description="a site that asks for more is left alone")


@dataclass(frozen=True)
class Download:
    """What is known of a URL, without its bytes.

    Attributes:
        url: as asked for.
        final_url: after redirects; "" on an error.
        media_type: as the server said.
        sha256: of the bytes; "" on an error.
        error: why there are no bytes, one sentence.
        retryable: whether a later try may succeed.
    """

    url: str
    final_url: str = ""
    media_type: str = ""
    sha256: str = ""
    error: str | None = None
    retryable: bool = False


class Downloads:
    """A folder of downloads, named by the SHA-256 of their URLs, that fills itself when asked.

    What was fetched once is not fetched again, nor is what failed, until `forget_failures`.

    Args:
        folder: made when missing.
        settings: limits, rates and patience.
        fetcher: to fetch with; one with these settings when None. Closed with the downloads.
    """

    def __init__(self, folder: Path, settings: DownloadSettings, fetcher: Fetcher | None = None) -> None:
        self._folder = folder
        self._settings = settings
        self._fetcher = fetcher or Fetcher(settings, connections=settings.workers)
        self._gate = _Gate(settings.max_wait_s)
        self._robots = Robots(self._read_robots, settings.user_agent)
        self._checks = Checks(self._before, self._answered)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._fetcher.close()

    def stop(self) -> None:
        """End waits of other threads; they raise FetchFailed and leave nothing on disk."""
        self._gate.stop()

    def bring(self, url: str) -> Download:
        """What is known of the URL, after fetching it unless that was tried before.

        Raises:
            FetchFailed: `stop` was called.
            OSError: the folder cannot be written.
        """
        known = self.find(url)
        if known and (known.error or self._path(url, ".bin").is_file()):
            return known
        try:
            fetched = self._patiently(url, lambda: self._fetcher.fetch(url, self._checks))
        except FetchError as error:
            if self._gate.stopped:
                raise
            download = Download(url, error=_told(error, url), retryable=error.retryable)
        else:
            download = self._keep(url, fetched)
        # The note comes last: bytes without one are not looked at.
        note = json.dumps(asdict(download), ensure_ascii=False, sort_keys=True)
        self._write(self._path(url, ".json"), note.encode("utf-8"))
        return download

    def find(self, url: str) -> Download | None:
        """What is known of the URL without asking the network; None when it was never tried."""
        return _read_note(self._path(url, ".json"))

    def read(self, download: Download) -> bytes:
        """The bytes of a download that succeeded.

        Raises:
            OSError: they are gone or changed.
        """
        path = self._path(download.url, ".bin")
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != download.sha256:
            raise OSError(errno.EIO, "the downloaded bytes have changed; delete the file", str(path))
        return data

    def _path(self, url: str, suffix: str) -> Path:
        digest = hashlib.sha256(url.encode("utf-8")).hexdigest()
        return self._folder / digest[:2] / f"{digest}{suffix}"

    def _keep(self, url: str, fetched: Fetched) -> Download:
        if fetched.media_type in NOT_PICTURES:
            return Download(url, error=f"the server sent {fetched.media_type}, no picture")
        self._write(self._path(url, ".bin"), fetched.data)
        sha256 = hashlib.sha256(fetched.data).hexdigest()
        return Download(url, fetched.final_url, fetched.media_type, sha256)

    def _write(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)

    def _patiently(self, url: str, fetch: Callable[[], Fetched]) -> Fetched:
        """What the fetch gives at last; failures that may pass are tried again, ever more slowly."""
        for attempt in range(self._settings.retries):
            try:
                return fetch()
            except FetchFailed as error:
                # Reading robots.txt was patient already, and its outcome is remembered.
                hopeless = not error.retryable or isinstance(error, RobotsUnknown)
                if hopeless or (error.wait_s or 0) > self._settings.max_wait_s:
                    raise
                if error.wait_s:
                    self._gate.hold(error.url, error.wait_s)
                self._gate.sleep(url, self._settings.backoff_s * 2**attempt * _spread(url, attempt))
        return fetch()

    def _before(self, url: str) -> None:
        gap_s = self._robots.check(url)
        if gap_s > self._settings.max_wait_s:
            limit = self._settings.max_wait_s
            raise FetchRefused(
                url, f"robots.txt wants {gap_s:g} s between requests; at most {limit:g} are waited"
            )
        self._gate.enter(url, max(gap_s, self._settings.host_gap_s))

    def _answered(self, url: str, headers: Iterable[tuple[str, str]]) -> None:
        check_headers(url, headers, self._settings.user_agent)

    def _read_robots(self, url: str) -> bytes:
        gap_s = self._settings.host_gap_s
        checks = Checks(before=lambda place: self._gate.enter(place, gap_s))
        return self._patiently(url, lambda: self._fetcher.fetch(url, checks)).data


def forget_failures(folder: Path, *, all_of_them: bool = False) -> int:
    """How many failures of a downloads folder were dropped, so that they are tried again.

    Args:
        folder: of a `Downloads`; may be missing.
        all_of_them: also those that another try is not likely to change.
    """
    dropped = 0
    for path in sorted(folder.glob("??/*.json")):
        download = _read_note(path)
        if download is None or (download.error and (download.retryable or all_of_them)):
            path.unlink()
            dropped += 1
    return dropped


def _read_note(path: Path) -> Download | None:
    """What the note says; None when there is none or it is damaged."""
    try:
        return Download(**json.loads(path.read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


class _Gate:
    """Lets requests to one host pass one after another, with a gap between their starts."""

    def __init__(self, max_wait_s: float) -> None:
        self._max_wait_s = max_wait_s
        self._free_at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def stop(self) -> None:
        self._stop.set()

    def enter(self, url: str, gap_s: float) -> None:
        """Wait for the host's turn."""
        host = urlsplit(url).netloc
        with self._lock:
            now = time.monotonic()
            start = max(now, self._free_at.get(host, now))
            self._free_at[host] = start + gap_s
            if len(self._free_at) > 10_000:
                self._free_at = {name: at for name, at in self._free_at.items() if at > now}
        self.sleep(url, start - now)

    def hold(self, url: str, seconds: float) -> None:
        """Let nobody pass to the host for so long, as it asked."""
        host = urlsplit(url).netloc
        with self._lock:
            until = time.monotonic() + seconds
            self._free_at[host] = max(until, self._free_at.get(host, until))

    def sleep(self, url: str, seconds: float) -> None:
        if self._stop.wait(max(0.0, seconds)):
            raise FetchFailed(url, "the downloads were stopped", retryable=True)


def _spread(url: str, attempt: int) -> float:
    """A factor of 0.75 to 1.25 that differs by URL, so that retries of many do not fall together."""
    return 0.75 + hashlib.sha256(f"{url}\0{attempt}".encode()).digest()[0] / 510


def _told(error: FetchError, url: str) -> str:
    """The error's reason; after a redirect with the place where it happened."""
    same = error.url.rstrip("/") == url.rstrip("/")
    return error.reason if same else f"{error.reason} (redirected to {error.url})"
