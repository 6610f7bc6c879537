"""What a site's owner may ask of programs, and how it is read."""

import threading

import pytest

from mirage.download.fetch import FetchFailed, FetchRefused
from mirage.download.robots import Robots, RobotsUnknown, check_headers

AGENT = "omniaid-mirage/1 (contact)"


def robots(text: str | Exception, asked: list[str] | None = None) -> Robots:
    def read(url: str) -> bytes:
        if asked is not None:
            asked.append(url)
        if isinstance(text, Exception):
            raise text
        return text.encode()

    return Robots(read, AGENT)


def test_rules_for_everyone_and_for_us():
    rules = robots("User-agent: *\nDisallow: /private/\nAllow: /private/open\n")
    assert rules.check("http://a.test/pictures/1.png") == 0
    assert rules.check("http://a.test/private/open.png") == 0
    with pytest.raises(FetchRefused, match=r"robots.txt forbids it to omniaid-mirage"):
        rules.check("http://a.test/private/1.png")
    ours = robots("User-agent: Omniaid-Mirage\nDisallow: /\n\nUser-agent: *\nAllow: /\n")
    with pytest.raises(FetchRefused):
        ours.check("http://a.test/1.png")


def test_rules_for_other_programs_are_not_ours():
    assert robots("User-agent: mirage\nDisallow: /\n").check("http://a.test/1.png") == 0


def test_a_wish_for_slowness_is_passed_on():
    assert robots("User-agent: *\nCrawl-delay: 7\n").check("http://a.test/") == 7
    assert robots("User-agent: *\nRequest-rate: 1/20\n").check("http://a.test/") == 20


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_without_the_file_everything_is_allowed(status):
    gone = FetchFailed("http://a.test/robots.txt", "gone", retryable=False, status=status)
    assert robots(gone).check("http://a.test/1.png") == 0


@pytest.mark.parametrize("status", [429, 500, 503, None])
def test_a_site_that_cannot_say_is_left_alone(status):
    failed = FetchFailed("http://a.test/robots.txt", "no answer", retryable=True, status=status)
    with pytest.raises(RobotsUnknown, match=r"robots.txt of the site cannot be read: no answer") as caught:
        robots(failed).check("http://a.test/1.png")
    assert caught.value.retryable and caught.value.url == "http://a.test/1.png"


def test_each_site_is_asked_once_by_however_many_threads():
    asked: list[str] = []
    rules = robots("", asked)
    urls = [f"http://{host}.test/{number}.png" for number in range(20) for host in ("a", "b")]
    threads = [threading.Thread(target=rules.check, args=(url,)) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(asked) == ["http://a.test/robots.txt", "http://b.test/robots.txt"]


@pytest.mark.parametrize(
    "value",
    [
        "noai",
        "NoImageAI",
        "noindex, nofollow",
        "noimageindex",
        "none",
        "max-image-preview:large, noai",
        "omniaid-mirage: noai",
        "otherbot: nofollow, omniaid-mirage: noindex",
        "unavailable_after: Wed, 03 Dec 2025 13:09:53 GMT, noai",
        "*: noai",
    ],
)
def test_headers_that_forbid(value):
    with pytest.raises(FetchRefused, match="X-Robots-Tag header says no"):
        check_headers("http://a.test/1.png", [("Content-Type", "image/png"), ("X-Robots-Tag", value)], AGENT)


@pytest.mark.parametrize(
    "value", ["", "all", "nofollow", "otherbot: noai", "otherbot: noindex, noai", "noarchive", ",,:,"]
)
def test_headers_that_do_not_forbid(value):
    check_headers("http://a.test/1.png", [("x-robots-tag", value)], AGENT)


def test_any_of_several_headers_forbids():
    headers = [("x-robots-tag", "otherbot: noindex"), ("x-robots-tag", "noai")]
    with pytest.raises(FetchRefused):
        check_headers("http://a.test/1.png", headers, AGENT)
