"""What surrounds every answer: request id, security headers, byte cap, drain, numbers, the last resort."""

import asyncio
import logging
import re
import time
import uuid
from http import HTTPStatus

from anyio import move_on_after
from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.drain import Drain
from service.metrics import Metrics
from service.problems import problem
from service.settings import Settings

log = logging.getLogger("omniaid.service")
access_log = logging.getLogger("omniaid.access")

FRAMING_BYTES = 64 * 1024  # multipart boundaries and part headers around the picture itself
LINGER_S, LINGER_BYTES = 2, 64 * 2**20  # how long, and how much of, a refused body is still read
TOO_LARGE = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
CLOSE = {"Connection": "close"}
STOPPED = (
    HTTPStatus.SERVICE_UNAVAILABLE,
    "the server stops and could not finish in time; try again in a moment",
    {"Retry-After": "5", **CLOSE},
)
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
MANY = ("/v1/batches", "/v1/jobs")
QUIET = ("/health", "/ready", "/metrics")
# The page's framework needs inline scripts and styles, and evaluates templates. Nothing comes from elsewhere.
CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'self'",
    )
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Envelope:
    """ASGI middleware around the whole application."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics, drain: Drain) -> None:
        self.app = app
        self._settings = settings
        self._metrics = metrics
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; connections that are not HTTP pass through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope.setdefault("state", {})["request_id"] = _request_id(scope)
        exchange = _Exchange(scope, receive, send, *_cap(scope, self._settings))
        start = time.perf_counter()
        counted = scope["path"].startswith("/v1/")
        self._drain.running += counted
        try:
            await self._answer(scope, exchange)
        finally:
            self._drain.running -= counted
            self._note(scope, exchange, time.perf_counter() - start)

    async def _answer(self, scope: Scope, exchange: "_Exchange") -> None:
        refusal = self._refusal(scope, exchange)
        try:
            if refusal is not None:
                exchange.refused = True
                await problem(scope, *refusal)(scope, exchange.receive_raw, exchange.send)
            else:
                await self.app(scope, exchange.receive, exchange.send)
        except asyncio.CancelledError:
            if not self._drain.begun or exchange.started:
                raise
            # The time for running work is over; the caller gets a clean answer instead of a lost connection.
            await problem(scope, *STOPPED)(scope, exchange.receive_raw, exchange.send)
        except Exception:
            request_id = scope["state"]["request_id"]
            log.exception("a request failed", extra={"request_id": request_id})
            if exchange.started:
                raise
            detail = f"the server failed; quote request id {request_id} when you report it"
            answer = problem(scope, HTTPStatus.INTERNAL_SERVER_ERROR, detail)
            await answer(scope, exchange.receive_raw, exchange.send)

    def _refusal(self, scope: Scope, exchange: "_Exchange") -> tuple[int, str, dict[str, str]] | None:
        """What is answered before the body is read, if anything is."""
        if self._drain.begun and scope["method"] == "POST":
            retry = {"Retry-After": "5", **CLOSE}
            return HTTPStatus.SERVICE_UNAVAILABLE, "the server is about to stop; try again in a moment", retry
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared[:20]) > exchange.cap_bytes:
            return TOO_LARGE, too_large(exchange.said_bytes), CLOSE
        return None

    def _note(self, scope: Scope, exchange: "_Exchange", seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(route, scope["method"], str(exchange.status)).inc()
        self._metrics.latency.labels(route).observe(seconds)
        if route in QUIET:
            return
        fields = {
            "request_id": scope["state"]["request_id"],
            "who": scope["state"].get("caller", ""),
            "method": scope["method"],
            "route": route,
            "status": exchange.status,
            "seconds": round(seconds, 4),
            "bytes": exchange.seen_bytes,
            "sha256": scope["state"].get("sha256", ""),
        }
        access_log.info("answered", extra=fields)


class _Exchange:
    """One request and its answer: counts what comes in, completes the headers of what goes out."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, cap_bytes: int, said_bytes: int) -> None:
        self.receive_raw = receive
        self._send = send
        self._scope = scope
        self.cap_bytes = cap_bytes
        self.said_bytes = said_bytes
        self.seen_bytes = 0
        self.started = False
        self.refused = False
        self.status = 0

    async def receive(self) -> Message:
        """The next part of the body; a body, chunked or not, is refused as soon as it passes the cap."""
        message = await self.receive_raw()
        self.seen_bytes += len(message.get("body", b""))
        if self.seen_bytes > self.cap_bytes:
            self.refused = True
            raise HTTPException(TOO_LARGE, too_large(self.said_bytes), CLOSE)
        return message

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on."""
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self._scope["state"]["request_id"]
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
            if self._scope["path"].startswith("/v1/"):
                headers.setdefault("Cache-Control", "no-store")
        if self.refused and message["type"] == "http.response.body" and not message.get("more_body"):
            await self._send({**message, "more_body": True})
            await self._drain_body()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _drain_body(self) -> None:
        """Read on for a moment: closing over unread bytes would reset the connection and lose the answer."""
        drained_bytes = 0
        with move_on_after(LINGER_S):
            while drained_bytes < LINGER_BYTES:
                message = await self.receive_raw()
                drained_bytes += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def too_large(max_bytes: int) -> str:
    """The sentence that refuses a body for its size."""
    return f"the upload is larger than {max_bytes:,} bytes, the most this server takes"


def _cap(scope: Scope, settings: Settings) -> tuple[int, int]:
    """Bytes that a body may have, and the number the caller is told; base64 takes a third more."""
    said = settings.max_batch_bytes if scope["path"] in MANY else settings.max_upload_bytes
    is_json = Headers(scope=scope).get("content-type", "").startswith("application/json")
    return (said * 4 // 3 if is_json else said) + FRAMING_BYTES, said


def _request_id(scope: Scope) -> str:
    """The caller's X-Request-ID when it is harmless in a log line, else a new one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
