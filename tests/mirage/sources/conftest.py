"""Surroundings of an opener, and a small web site on this machine whose every answer a test decides."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from mirage.sources.candidate import Candidate, Surroundings

FIELDS = {
    "name": "photos",
    "label": "real",
    "generator": "camera",
    "domain": "mixed",
    "split": "train",
    "licence": "CC0",
}
Answer = Callable[[BaseHTTPRequestHandler], None]


def around(tmp_path: Path, *, seed: int = 0, finished: frozenset = frozenset(), max_bytes: int = 10**6):
    return Surroundings(None, tmp_path, seed, finished, max_bytes, tmp_path / "cache")


def by_path(candidates) -> dict[str, Candidate]:
    """The candidates by their paths, which must differ."""
    found = list(candidates)
    table = {candidate.path: candidate for candidate in found}
    assert len(table) == len(found)
    return table


def say(body: bytes = b"", status: int = 200, **headers: str) -> Answer:
    """An answer with a body and headers; `X_Robots_Tag` becomes X-Robots-Tag."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@dataclass
class Site:
    """A web site: answers by path, and the paths asked for in order.

    Attributes:
        answers: of each path one answer, or several for one request after another, the last for ever.
    """

    port: int
    answers: dict[str, Answer | list[Answer]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        with self.lock:
            self.asked.append(handler.path)
            self.hosts.append(handler.headers["Host"])
            answer = self.answers.get(handler.path, say(b"nothing here", 404))
            if isinstance(answer, list):
                answer = answer.pop(0) if len(answer) > 1 else answer[0]
        answer(handler)

    def pictures_asked(self) -> list[str]:
        return [path for path in self.asked if path != "/robots.txt"]


@pytest.fixture
def make_server() -> Iterator[Callable[..., ThreadingHTTPServer]]:
    servers = []

    def make(answer: Answer) -> ThreadingHTTPServer:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                try:
                    answer(self)
                except OSError:  # the client has hung up, as some tests want
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def site(make_server) -> Site:
    server = make_server(lambda handler: site.answer(handler))
    site = Site(server.server_port)
    return site
