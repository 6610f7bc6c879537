"""One URL over a real connection: what is refused, what fails, and what comes back."""

import gzip
import socket
import ssl
import subprocess
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from mirage.download.addresses import kind_of_refusal
from mirage.download.fetch import Checks, Fetcher, FetchFailed, FetchRefused, FetchSettings
from tests.mirage.sources.conftest import say

HERE = FetchSettings(allow_hosts=("127.0.0.1",), timeout_s=5, silence_s=2)


def fetch(url: str, settings: FetchSettings = HERE, **options):
    with Fetcher(settings, **options) as fetcher:
        return fetcher.fetch(url)


def at_home(host: str, port: int) -> list[str]:
    return ["127.0.0.1"]


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("127.8.0.1", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("10.1.2.3", "private"),
        ("172.31.0.1", "private"),
        ("192.168.0.1", "private"),
        ("fd00::1", "private"),
        ("fec0::1", "private"),
        ("169.254.169.254", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("224.0.1.1", "multicast"),
        ("ff02::1", "multicast"),
        ("100.64.0.1", "carrier-grade NAT"),
        ("::ffff:8.8.8.8", "IPv4 inside IPv6"),
        ("64:ff9b::808:808", "IPv4 inside IPv6"),
        ("2002:808:808::1", "IPv4 inside IPv6"),
        ("255.255.255.255", "private"),
        ("2001:db8::1", "private"),
        ("8.8.8.8", None),
        ("2606:4700:4700::1111", None),
    ],
)
def test_only_public_addresses_are_public(address, kind):
    assert kind_of_refusal(address) == kind


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "2130706433", "[::ffff:127.0.0.1]"])
def test_this_machine_is_refused_under_every_spelling(site, host):
    site.answers["/a.png"] = say(b"secret")
    with pytest.raises(FetchRefused, match=r"only public ones are fetched"):
        fetch(site.url("/a.png", host), FetchSettings())
    assert site.asked == []


def test_one_private_address_among_public_ones_is_enough():
    with pytest.raises(FetchRefused, match=r"private address 10.0.0.1"):
        fetch("http://two.test/", FetchSettings(), resolve=lambda host, port: ["8.8.8.8", "10.0.0.1"])


def test_the_address_that_was_checked_is_the_one_connected_to(site):
    """The name is asked for once; an answer that changes afterwards is never seen."""
    site.answers["/a.png"] = say(b"bytes")
    answers = [["127.0.0.1"], ["192.0.2.1"]]
    settings = FetchSettings(allow_hosts=("pictures.test",))
    fetched = fetch(site.url("/a.png", "pictures.test"), settings, resolve=lambda *_: answers.pop(0))
    assert fetched.data == b"bytes" and len(answers) == 1
    assert site.hosts == [f"pictures.test:{site.port}"]


def test_the_next_address_is_tried_when_one_does_not_answer(site):
    site.answers["/a.png"] = say(b"bytes")
    settings = FetchSettings(allow_hosts=("pictures.test",))
    addresses = ["127.0.0.2", "127.0.0.1"]  # nothing listens on the first
    assert fetch(site.url("/a.png", "pictures.test"), settings, resolve=lambda *_: addresses).data == b"bytes"


def test_tls_verifies_the_name_in_the_url(make_server, tmp_path):
    certificate = tmp_path / "certificate.pem"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    name = ["-subj", "/CN=pictures.test", "-addext", "subjectAltName=DNS:pictures.test", "-days", "2"]
    files = ["-keyout", tmp_path / "key.pem", "-out", certificate]
    subprocess.run([*make, *name, *files], check=True, capture_output=True)
    server = make_server(say(b"bytes"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    trusted = ssl.create_default_context(cafile=str(certificate))
    settings = FetchSettings(allow_hosts=("pictures.test", "other.test"))
    options = {"resolve": at_home, "ssl_context": trusted}
    assert fetch(f"https://pictures.test:{server.server_port}/", settings, **options).data == b"bytes"
    with pytest.raises(FetchFailed, match="certificate verify failed") as caught:
        fetch(f"https://other.test:{server.server_port}/", settings, **options)
    assert not caught.value.retryable


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("ftp://8.8.8.8/a.png", "no http or https URL"),
        ("file:///etc/hostname", "no http or https URL"),
        ("//8.8.8.8/a.png", "no http or https URL"),
        ("pictures/a.png", "no http or https URL"),
        ("http://me:secret@8.8.8.8/a.png", "user name or password"),
        ("http://8.8.8.8/\r\nHost: other", "not a URL"),
        ("http://8.8.8.8:x/", "not a URL"),
        ("http://8.8.8.8:99999/", "no port 99999"),
    ],
)
def test_what_is_no_plain_web_address_is_refused(url, reason):
    with pytest.raises(FetchRefused, match=reason):
        fetch(url)


def test_a_redirect_is_followed_by_hand(site):
    site.answers["/old.png"] = say(b"ignored", 302, Location="new%20place.png?x=1#part")
    site.answers["/new%20place.png?x=1"] = say(b"bytes", Content_Type="Image/PNG; charset=x")
    fetched = fetch(site.url("/old.png"))
    assert (fetched.data, fetched.media_type) == (b"bytes", "image/png")
    assert fetched.final_url == site.url("/new%20place.png?x=1")


@pytest.mark.parametrize("host", ["localhost", "10.0.0.1", "169.254.169.254"])
def test_a_redirect_to_a_private_address_is_refused(site, host):
    site.answers["/a.png"] = say(b"", 301, Location=site.url("/secret", host))
    site.answers["/secret"] = say(b"secret")
    with pytest.raises(FetchRefused, match=f"the host {host} has the") as caught:
        fetch(site.url("/a.png"))
    assert caught.value.url == site.url("/secret", host)
    assert site.asked == ["/a.png"]


def test_a_redirect_to_a_file_is_refused(site):
    site.answers["/a.png"] = say(b"", 301, Location="file:///etc/hostname")
    with pytest.raises(FetchRefused, match="no http or https URL"):
        fetch(site.url("/a.png"))


def test_redirects_end(site):
    site.answers["/a.png"] = say(b"", 302, Location="/a.png")
    with pytest.raises(FetchRefused, match="more than 5 redirects"):
        fetch(site.url("/a.png"))
    assert len(site.asked) == 6


def test_checks_see_every_request_and_only_the_last_answer(site):
    site.answers["/old.png"] = say(b"", 302, Location="/new.png", X_Note="first")
    site.answers["/new.png"] = say(b"bytes", X_Note="second")
    asked, answered = [], []
    checks = Checks(asked.append, lambda url, headers: answered.append((url, dict(headers)["x-note"])))
    with Fetcher(HERE) as fetcher:
        fetcher.fetch(site.url("/old.png"), checks)
    assert asked == [site.url("/old.png"), site.url("/new.png")]
    assert answered == [(site.url("/new.png"), "second")]


def chunks(*pieces: bytes, pause_s: float = 0.0):
    def answer(handler):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for piece in pieces:
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            time.sleep(pause_s)
        handler.wfile.write(b"0\r\n\r\n")

    return answer


def test_the_cap_counts_bytes_and_not_promises(site):
    settings = HERE.model_copy(update={"max_bytes": 10_000})
    site.answers["/exact"] = chunks(b"x" * 5_000, b"y" * 5_000)
    site.answers["/chunked"] = chunks(*[b"x" * 1_000] * 11)
    site.answers["/told"] = say(b"x" * 20_000)
    site.answers["/packed"] = say(gzip.compress(b"\0" * 5_000_000), Content_Encoding="gzip")
    assert len(fetch(site.url("/exact"), settings).data) == 10_000
    with pytest.raises(FetchRefused, match="more than 10,000 bytes"):
        fetch(site.url("/chunked"), settings)
    with pytest.raises(FetchRefused, match="has 20,000 bytes"):
        fetch(site.url("/told"), settings)
    with pytest.raises(FetchRefused, match="more than 10,000 bytes"):
        fetch(site.url("/packed"), settings)


def test_a_body_that_came_compressed_unasked_is_unpacked(site):
    packed = gzip.compress(b"bytes" * 100)
    site.answers["/packed"] = say(packed, Content_Encoding="gzip")
    site.answers["/cut"] = say(packed[:-12], Content_Encoding="gzip")
    site.answers["/odd"] = say(packed, Content_Encoding="br")
    assert fetch(site.url("/packed")).data == b"bytes" * 100
    with pytest.raises(FetchFailed, match="cut short"):
        fetch(site.url("/cut"))
    with pytest.raises(FetchFailed, match="encoded as br"):
        fetch(site.url("/odd"))


def test_a_server_that_drips_is_left_at_the_deadline(site):
    """Each byte comes in time; only the sum does not."""
    site.answers["/drip"] = chunks(*[b"x"] * 100, pause_s=0.05)
    settings = HERE.model_copy(update={"timeout_s": 0.4, "silence_s": 0.3})
    started = time.monotonic()
    with pytest.raises(FetchFailed, match=r"no complete answer within 0.4 s") as caught:
        fetch(site.url("/drip"), settings)
    assert caught.value.retryable and time.monotonic() - started < 1.0


def test_headers_that_drip_are_left_at_the_deadline(site):
    def drip(handler):
        for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100:
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(0.05)

    site.answers["/drip"] = drip
    settings = HERE.model_copy(update={"timeout_s": 0.4, "silence_s": 0.3})
    started = time.monotonic()
    with pytest.raises(FetchFailed, match="no complete answer"):
        fetch(site.url("/drip"), settings)
    assert time.monotonic() - started < 1.0


@pytest.mark.parametrize("limits", [{"silence_s": 0.2}, {"timeout_s": 0.2}])
def test_a_silent_server_is_left(site, limits):
    site.answers["/silent"] = lambda handler: time.sleep(1)
    started = time.monotonic()
    with pytest.raises(FetchFailed, match=r"no complete answer within .*0.2 s"):
        fetch(site.url("/silent"), HERE.model_copy(update=limits))
    assert time.monotonic() - started < 0.8


def test_a_body_cut_short_is_a_failure(site):
    def cut(handler):
        say(b"half", Content_Length="100")(handler)
        handler.close_connection = True

    site.answers["/cut"] = cut
    with pytest.raises(FetchFailed, match="the transfer failed") as caught:
        fetch(site.url("/cut"))
    assert caught.value.retryable


@pytest.mark.parametrize(
    ("status", "retryable"), [(404, False), (403, False), (204, False), (429, True), (408, True), (503, True)]
)
def test_a_status_tells_whether_another_try_is_worth_it(site, status, retryable):
    site.answers["/a.png"] = say(b"", status)
    with pytest.raises(FetchFailed, match=f"status {status}") as caught:
        fetch(site.url("/a.png"))
    assert (caught.value.retryable, caught.value.status) == (retryable, status)


def test_retry_after_is_seconds_or_a_date(site):
    moment = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    waits = []
    for value in ("7", moment, "soon", "-3"):
        site.answers["/a.png"] = say(b"", 503, Retry_After=value)
        with pytest.raises(FetchFailed) as caught:
            fetch(site.url("/a.png"))
        waits.append(caught.value.wait_s)
    assert waits[0] == 7 and 80 < waits[1] <= 90 and waits[2:] == [None, None]


def test_a_host_that_nobody_knows_is_no_crash():
    with pytest.raises(FetchFailed, match="cannot be resolved"):
        fetch(f"http://{'a' * 64}.test/")


def test_a_name_that_does_not_exist_is_not_tried_again():
    def unknown(host, port):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(FetchFailed, match="Name or service not known") as caught:
        fetch("http://gone.test/", resolve=unknown)
    assert not caught.value.retryable


def test_a_closed_port_is_a_failure_that_may_pass(site):
    with pytest.raises(FetchFailed, match="refused") as caught:
        fetch("http://127.0.0.1:9/")
    assert caught.value.retryable
