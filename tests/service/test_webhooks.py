"""Webhooks to a real receiver: signed, repeated, given up, and never to a private address."""

import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from service.database import open_database
from service.fetching import FetchRejected, Posts
from service.jobs import Jobs, Source
from service.settings import Settings
from service.webhooks import Webhooks

SECRET = "a secret of the tests only"


class Receiver(HTTPServer):
    """Keeps what it gets, and answers with the statuses it was given, 200 after them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.statuses: list[int] = []


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        receiver: Receiver = self.server  # type: ignore[assignment]
        body = self.rfile.read(int(self.headers["content-length"]))
        receiver.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as opened:
        thread = threading.Thread(target=opened.serve_forever, daemon=True)
        thread.start()
        yield opened
        opened.shutdown()
        thread.join()


@pytest.fixture
def settings(tmp_path):
    return Settings(
        state=tmp_path,
        webhook_secret=SECRET,
        webhook_tries=2,
        webhook_wait_s=0.1,
        fetch_hosts=("localhost",),
        fetch_timeout_s=20,
    )


@pytest.fixture
def engine(database_url):
    opened = open_database(database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def over(engine, receiver):
    """A job that was cancelled, and so has a webhook due."""
    jobs = Jobs(engine, 60)
    url = f"http://localhost:{receiver.server_port}/told"
    identity = jobs.create("me", [Source("a", data=b"x")], url)
    jobs.cancel(identity, "me")
    return identity


def test_a_receiver_can_verify_what_it_gets(engine, receiver, settings, over):
    webhooks = Webhooks(engine, Posts(settings), settings)
    assert webhooks.due() == [over] and webhooks.due() == []
    webhooks.deliver(over)
    [(headers, body)] = receiver.got
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(SECRET.encode(), content, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}" and headers["webhook-id"] == over
    message = json.loads(body)
    assert message["type"] == "job.cancelled" and message["data"]["total"] == 1
    assert Jobs(engine, 60).get(over, "me").webhook_state == "delivered"
    webhooks.deliver(over)
    assert len(receiver.got) == 1, "a delivered webhook is not sent again"


def test_a_failure_is_repeated_and_then_given_up(engine, receiver, settings, over):
    webhooks, jobs = Webhooks(engine, Posts(settings), settings), Jobs(engine, 60)
    receiver.statuses = [500, 302]
    webhooks.deliver(over)
    row = jobs.get(over, "me")
    assert row.webhook_state == "pending" and row.webhook_tries == 1 and row.webhook_due is not None
    webhooks.deliver(over)
    assert jobs.get(over, "me").webhook_state == "failed" and len(receiver.got) == 2


def test_private_addresses_get_no_webhook(receiver, settings):
    posts = Posts(settings.model_copy(update={"fetch_hosts": ()}))
    with pytest.raises(FetchRejected, match="loopback"):
        posts.post(f"http://localhost:{receiver.server_port}/", b"{}", {})
    assert receiver.got == []
