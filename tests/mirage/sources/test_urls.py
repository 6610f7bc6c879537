"""A table of URLs against a real web site on this machine."""

import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from mirage.download.downloads import Downloads, DownloadSettings, forget_failures
from mirage.download.fetch import FetchFailed
from mirage.errors import RecipeError
from mirage.sources.candidate import MissingSource
from mirage.sources.entries import by_hash, read_entries
from mirage.sources.urls import UrlsSource, open_urls
from tests.mirage.conftest import encode, picture
from tests.mirage.sources.conftest import FIELDS, around, by_path, say

PNG = encode(picture(1))
SWIFT = {"allow_hosts": ("127.0.0.1",), "host_gap_s": 0, "backoff_s": 0.01, "timeout_s": 5, "silence_s": 2}


def make_source(tmp_path: Path, urls: list[str], **download) -> UrlsSource:
    lines = ["url,caption", *(f"{url},picture {number}" for number, url in enumerate(urls))]
    (tmp_path / "urls.csv").write_text("\n".join(lines), "utf-8")
    return UrlsSource(**FIELDS, kind="urls", path="urls.csv", download=SWIFT | download)


def test_pictures_arrive_with_their_columns_in_an_order_that_speed_does_not_change(site, tmp_path):
    def late(handler):
        time.sleep(0.1)
        say(PNG)(handler)

    names = [f"/{number}.png" for number in range(12)]
    site.answers |= {name: late if number % 3 else say(PNG) for number, name in enumerate(names)}
    source = make_source(tmp_path, [site.url(name) for name in names])
    first = list(open_urls(source, around(tmp_path)))
    assert {c.path: c.columns for c in first} == {
        site.url(name): {"caption": f"picture {number}"} for number, name in enumerate(names)
    }
    assert all(c.data == PNG for c in first)
    site.answers.clear()
    assert list(open_urls(source, around(tmp_path))) == first  # from the cache: the site has nothing now
    other = [c.path for c in open_urls(source, around(tmp_path, seed=1))]
    assert other != [c.path for c in first] and sorted(other) == sorted(c.path for c in first)


def test_robots_txt_is_obeyed(site, tmp_path):
    site.answers |= {
        "/robots.txt": say(b"User-agent: *\nDisallow: /closed/\n"),
        "/closed/1.png": say(PNG),
        "/open/1.png": say(PNG),
        "/open/2.png": say(b"", 302, Location="/closed/1.png"),
    }
    urls = [site.url(path) for path in ("/closed/1.png", "/open/1.png", "/open/2.png")]
    found = by_path(open_urls(make_source(tmp_path, urls), around(tmp_path)))
    assert found[urls[0]].error == "robots.txt forbids it to omniaid-mirage"
    assert found[urls[1]].data == PNG
    assert found[urls[2]].error == f"robots.txt forbids it to omniaid-mirage (redirected to {urls[0]})"
    assert site.asked.count("/robots.txt") == 1 and "/closed/1.png" not in site.asked


def test_a_site_whose_robots_txt_fails_is_left_alone(site, tmp_path, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(
        "mirage.download.downloads._Gate.sleep", lambda gate, url, seconds: waits.append(seconds)
    )
    site.answers |= {"/robots.txt": say(b"", 500), "/1.png": say(PNG), "/2.png": say(PNG)}
    urls = [site.url("/1.png"), site.url("/2.png")]
    found = by_path(open_urls(make_source(tmp_path, urls, retries=1, backoff_s=30), around(tmp_path)))
    assert {c.error for c in found.values()} == {
        "robots.txt of the site cannot be read: the server answered with status 500"
    }
    assert site.asked == ["/robots.txt"] * 2  # once, and once again
    assert len([seconds for seconds in waits if seconds > 20]) == 1  # and not for each picture


def test_noai_headers_are_obeyed(site, tmp_path):
    site.answers |= {
        "/1.png": say(PNG, X_Robots_Tag="noai, noimageai"),
        "/2.png": say(PNG, X_Robots_Tag="otherbot: noai"),
    }
    urls = [site.url("/1.png"), site.url("/2.png")]
    found = by_path(open_urls(make_source(tmp_path, urls), around(tmp_path)))
    assert found[urls[0]].error == "its X-Robots-Tag header says noai"
    assert found[urls[1]].data == PNG


def test_a_busy_site_is_asked_again_after_the_time_it_names(site, tmp_path):
    site.answers["/1.png"] = [say(b"", 429, Retry_After="1"), say(b"", 503), say(PNG)]
    started = time.monotonic()
    (candidate,) = open_urls(make_source(tmp_path, [site.url("/1.png")]), around(tmp_path))
    assert candidate.data == PNG and time.monotonic() - started >= 1
    assert site.pictures_asked() == ["/1.png"] * 3


def test_a_site_that_asks_for_too_long_is_left_and_may_be_asked_later(site, tmp_path):
    site.answers["/1.png"] = say(b"", 429, Retry_After="3600")
    source = make_source(tmp_path, [site.url("/1.png")])
    (candidate,) = open_urls(source, around(tmp_path))
    assert candidate.error == "the server answered with status 429"
    assert site.pictures_asked() == ["/1.png"]
    assert forget_failures(tmp_path / "cache" / "urls") == 1
    site.answers["/1.png"] = say(PNG)
    (candidate,) = open_urls(source, around(tmp_path))
    assert candidate.data == PNG


def test_retries_end_and_failures_are_remembered(site, tmp_path):
    site.answers |= {"/busy.png": say(b"", 503), "/gone.png": say(b"", 404)}
    urls = [site.url("/busy.png"), site.url("/gone.png")]
    source = make_source(tmp_path, urls, retries=2)
    for _ in range(2):
        found = by_path(open_urls(source, around(tmp_path)))
        assert found[urls[0]].error == "the server answered with status 503"
        assert found[urls[1]].error == "the server answered with status 404"
    assert sorted(site.pictures_asked()) == ["/busy.png"] * 3 + ["/gone.png"]
    folder = tmp_path / "cache" / "urls"
    assert forget_failures(folder) == 1  # the missing one stays missing
    assert forget_failures(folder, all_of_them=True) == 1
    assert forget_failures(tmp_path / "nowhere") == 0


def test_hosts_are_asked_slowly(site, tmp_path):
    moments: list[float] = []

    def note(handler):
        moments.append(time.monotonic())
        say(PNG)(handler)

    site.answers |= {f"/{number}.png": note for number in range(4)}
    urls = [site.url(f"/{number}.png") for number in range(4)]
    list(open_urls(make_source(tmp_path, urls, host_gap_s=0.15), around(tmp_path)))
    gaps = [after - before for before, after in pairwise(moments)]
    assert len(gaps) == 3 and min(gaps) > 0.1


def test_a_crawl_delay_above_our_patience_means_no(site, tmp_path):
    site.answers |= {"/robots.txt": say(b"User-agent: *\nCrawl-delay: 600\n"), "/1.png": say(PNG)}
    (candidate,) = open_urls(make_source(tmp_path, [site.url("/1.png")]), around(tmp_path))
    assert candidate.error == "robots.txt wants 600 s between requests; at most 60 are waited"


def test_several_downloads_run_at_a_time_but_no_more_than_allowed(site, tmp_path):
    lock, running, most = threading.Lock(), 0, 0

    def count(handler):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1
        say(PNG)(handler)

    site.answers |= {f"/{number}.png": count for number in range(12)}
    urls = [site.url(f"/{number}.png") for number in range(12)]
    list(open_urls(make_source(tmp_path, urls, workers=3), around(tmp_path)))
    assert most == 3


@pytest.mark.parametrize("media_type", ["text/html; charset=utf-8", "application/json"])
def test_a_page_is_no_picture(site, tmp_path, media_type):
    site.answers["/1.png"] = say(b"<html>please log in</html>", Content_Type=media_type)
    (candidate,) = open_urls(make_source(tmp_path, [site.url("/1.png")]), around(tmp_path))
    assert candidate.error == f"the server sent {media_type.partition(';')[0]}, no picture"


def test_private_addresses_are_refused_unless_the_recipe_names_the_host(site, tmp_path):
    site.answers["/1.png"] = say(PNG)
    urls = [site.url("/1.png"), site.url("/1.png", "localhost")]
    found = by_path(open_urls(make_source(tmp_path, urls), around(tmp_path)))
    assert found[urls[0]].data == PNG
    assert "loopback address" in found[urls[1]].error
    source = make_source(tmp_path, urls, allow_hosts=())
    found = by_path(open_urls(source, replace(around(tmp_path), cache=tmp_path / "fresh")))
    assert all("only public ones are fetched" in c.error for c in found.values())


def test_the_smaller_of_both_limits_holds(site, tmp_path):
    site.answers["/1.png"] = say(PNG)
    source = make_source(tmp_path, [site.url("/1.png")])
    (candidate,) = open_urls(source, around(tmp_path, max_bytes=100))
    assert candidate.error == f"the answer has {len(PNG):,} bytes; at most 100 are read"


def test_finished_ones_are_not_asked_for(site, tmp_path):
    url = site.url("/1.png")
    (candidate,) = open_urls(make_source(tmp_path, [url]), around(tmp_path, finished=frozenset([url])))
    assert (candidate.data, candidate.error, candidate.columns) == (None, None, {"caption": "picture 0"})
    assert site.asked == []


def test_a_url_that_comes_twice_or_is_none_has_an_error(site, tmp_path):
    site.answers["/1.png"] = say(PNG)
    url = site.url("/1.png")
    found = by_path(open_urls(make_source(tmp_path, [url, "", "not a url", url]), around(tmp_path)))
    assert found[url].data == PNG
    assert found[f"{url} (row 4)"].error == f"row 1 names {url} already"
    assert found["row 2"].error == "column url of row 2 is empty"
    assert "no http or https URL" in found["not a url"].error


def test_damaged_bytes_in_the_cache_are_no_picture_and_lost_ones_are_fetched_again(site, tmp_path):
    site.answers["/1.png"] = say(PNG)
    source = make_source(tmp_path, [site.url("/1.png")])
    list(open_urls(source, around(tmp_path)))
    (stored,) = (tmp_path / "cache" / "urls").glob("??/*.bin")
    stored.write_bytes(PNG[:-1])
    with pytest.raises(OSError, match="have changed"):
        list(open_urls(source, around(tmp_path)))
    stored.unlink()
    (candidate,) = open_urls(source, around(tmp_path))
    assert candidate.data == PNG and site.pictures_asked() == ["/1.png"] * 2


def test_leaving_early_ends_the_threads_and_remembers_no_failure(site, tmp_path):
    urls = [site.url(f"/{number}.png") for number in range(40)]
    site.answers |= {f"/{number}.png": say(b"", 503) for number in range(40)}
    source = make_source(tmp_path, urls, backoff_s=30, retries=1)
    first = next(iter(by_hash(read_entries(tmp_path / "urls.csv", "url", "photos"), 0))).name
    site.answers[first.removeprefix(site.url(""))] = say(PNG)
    candidates = open_urls(source, around(tmp_path))
    assert next(candidates).path == first
    started = time.monotonic()
    candidates.close()
    assert time.monotonic() - started < 5
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("download")]
    assert len(list((tmp_path / "cache" / "urls").glob("??/*.json"))) == 1


def test_a_stop_ends_waits_and_leaves_no_note(site, tmp_path):
    site.answers["/1.png"] = say(b"", 503)
    settings = DownloadSettings(**SWIFT | {"backoff_s": 30})
    with Downloads(tmp_path / "urls", settings) as downloads:
        threading.Timer(0.2, downloads.stop).start()
        with pytest.raises(FetchFailed, match="stopped"):
            downloads.bring(site.url("/1.png"))
        assert downloads.find(site.url("/1.png")) is None


def test_a_table_that_cannot_be_used_is_told(tmp_path):
    source = UrlsSource(**FIELDS, kind="urls", path="urls.csv", url_column="link")
    with pytest.raises(MissingSource, match=r"urls.csv does not exist"):
        next(open_urls(source, around(tmp_path)))
    make_source(tmp_path, [])
    with pytest.raises(RecipeError, match=r"has no column 'link'; it has url, caption"):
        next(open_urls(source, around(tmp_path)))
