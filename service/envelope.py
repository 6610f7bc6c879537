"""What surrounds every answer: request id, security headers, the byte cap, and the last resort."""

import logging
import re
import uuid
from http import HTTPStatus

from anyio import move_on_after
from fastapi import HTTPException
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.problems import problem

log = logging.getLogger("omniaid.service")

FRAMING_BYTES = 64 * 1024  # multipart boundaries and part headers around the picture itself
LINGER_S, LINGER_BYTES = 2, 64 * 2**20  # how long, and how much of, a refused body is still read
TOO_LARGE = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
CLOSE = {"Connection": "close"}
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
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

    def __init__(self, app: ASGIApp, max_upload_bytes: int) -> None:
        self.app = app
        self.max_upload_bytes = max_upload_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; connections that are not HTTP pass through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope.setdefault("state", {})["request_id"] = request_id
        exchange = _Exchange(receive, send, request_id, self.max_upload_bytes)
        try:
            declared = Headers(scope=scope).get("content-length", "")
            if declared.isdecimal() and int(declared) > exchange.cap_bytes:
                exchange.refused = True
                refusal = problem(scope, TOO_LARGE, too_large(self.max_upload_bytes), CLOSE)
                await refusal(scope, receive, exchange.send)
            else:
                await self.app(scope, exchange.receive, exchange.send)
        except Exception:
            log.exception("request %s failed", request_id)
            if exchange.started:
                raise
            detail = f"the server failed; quote request id {request_id} when you report it"
            await problem(scope, HTTPStatus.INTERNAL_SERVER_ERROR, detail)(scope, receive, exchange.send)


class _Exchange:
    """One request and its answer: counts what comes in, completes the headers of what goes out."""

    def __init__(self, receive: Receive, send: Send, request_id: str, max_upload_bytes: int) -> None:
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._max_upload_bytes = max_upload_bytes
        self._seen_bytes = 0
        self.cap_bytes = max_upload_bytes + FRAMING_BYTES
        self.started = False
        self.refused = False

    async def receive(self) -> Message:
        """The next part of the body; a body, chunked or not, is refused as soon as it passes the cap."""
        message = await self._receive()
        self._seen_bytes += len(message.get("body", b""))
        if self._seen_bytes > self.cap_bytes:
            self.refused = True
            raise HTTPException(TOO_LARGE, too_large(self._max_upload_bytes), CLOSE)
        return message

    async def send(self, message: Message) -> None:
        """Pass a part of the answer on."""
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self._request_id
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        if self.refused and message["type"] == "http.response.body" and not message.get("more_body"):
            await self._send({**message, "more_body": True})
            await self._drain()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _drain(self) -> None:
        """Read on for a moment: closing over unread bytes would reset the connection and lose the answer."""
        drained_bytes = 0
        with move_on_after(LINGER_S):
            while drained_bytes < LINGER_BYTES:
                message = await self._receive()
                drained_bytes += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


def too_large(max_upload_bytes: int) -> str:
    """The sentence that refuses an upload for its size."""
    return f"the upload is larger than {max_upload_bytes:,} bytes, the most this server takes"


def _request_id(scope: Scope) -> str:
    """The caller's X-Request-ID when it is harmless in a log line, else a new one."""
    given = Headers(scope=scope).get("x-request-id", "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
