"""Pictures that a table of URLs names, downloaded once and kept."""

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import Field

from mirage.declarations import SourceBase
from mirage.download.downloads import Download, Downloads, DownloadSettings
from mirage.extras import need
from mirage.sources.candidate import Candidate, Surroundings
from mirage.sources.entries import Entry, by_hash, read_entries

AHEAD = 4  # downloads begun per worker before the first of them is asked for
FOLDER = "urls"  # of the downloads, below the cache


class UrlsSource(SourceBase):
    """Pictures behind the URLs that a Parquet, CSV, TSV or JSONL file holds, one a row."""

    kind: Literal["urls"]
    path: Path = Field(description="of the table; a relative one starts at the recipe's folder")
    url_column: str = "url"
    download: DownloadSettings = DownloadSettings()


def open_urls(source: UrlsSource, around: Surroundings) -> Generator[Candidate]:
    """What the table's URLs lead to, in hash order of the URLs; other scalar columns come along.

    Several downloads run at a time, a few ahead of the one that is asked for; their bytes wait on
    disk. What is in `around.cache` is not fetched again, so a rebuild gets the same bytes, and a URL
    that failed keeps its reason until `mirage.download.downloads.forget_failures`.

    Raises:
        MissingSource: the table is not on this machine.
        RecipeError: the table cannot be read, or lacks the column.
        MissingExtra: a package for downloads is not installed.
    """
    need("httpx", "urls")
    need("protego", "urls")
    settings = source.download
    settings = settings.model_copy(update={"max_bytes": min(settings.max_bytes, around.max_bytes)})
    table = around.recipe_dir / source.path
    entries = by_hash(read_entries(table, source.url_column, source.name), around.seed)
    ahead = min(AHEAD * settings.workers, source.cap or AHEAD * settings.workers)
    with Downloads(around.cache / FOLDER, settings) as downloads, _crew(downloads, settings) as crew:
        begun: deque[tuple[Entry, Future[Download] | None]] = deque()
        for entry in entries:
            asked = entry.error is None and entry.name not in around.finished
            begun.append((entry, crew.submit(downloads.bring, entry.name) if asked else None))
            if len(begun) >= ahead:
                yield _candidate(*begun.popleft(), downloads, around)
        while begun:
            yield _candidate(*begun.popleft(), downloads, around)


@contextmanager
def _crew(downloads: Downloads, settings: DownloadSettings) -> Iterator[ThreadPoolExecutor]:
    """Threads that download; when the block is left early, what has not begun is dropped."""
    crew = ThreadPoolExecutor(settings.workers, thread_name_prefix="download")
    try:
        yield crew
    finally:
        downloads.stop()
        crew.shutdown(cancel_futures=True)


def _candidate(
    entry: Entry, begun: Future[Download] | None, downloads: Downloads, around: Surroundings
) -> Candidate:
    if begun is None:
        error = None if entry.name in around.finished else entry.error
        return Candidate(entry.name, error=error, columns=entry.columns)
    download = begun.result()
    if download.error:
        return Candidate(entry.name, error=download.error, columns=entry.columns)
    return Candidate(entry.name, downloads.read(download), columns=entry.columns)
