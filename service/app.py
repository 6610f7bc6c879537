"""The web application: REST and page over one scorer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from anyio import to_thread
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from starlette.middleware.cors import CORSMiddleware

from service.drain import Drain
from service.envelope import Envelope
from service.parts import Parts, build_parts
from service.problems import register_problems
from service.reference import reference_page
from service.routes import make_router, register_unknown
from service.settings import Settings

API_VERSION = "1"
DESCRIPTION = "Tells whether a picture was made by AI, shows the evidence, and knows when it does not know."
CORS_EXPOSED = ("X-Request-ID", "X-Cache", "ETag", "Location", "Link", "Retry-After", "Server-Timing")


def create_app(settings: Settings, drain: Drain | None = None) -> FastAPI:
    """The application, with its model loaded.

    Args:
        settings: of the operator.
        drain: tells when the server is about to end.

    Raises:
        ModelError: the model file or its card cannot be used.
        SettingsError: database or queue cannot be used.
    """
    parts, drain = build_parts(settings), drain or Drain()
    app = FastAPI(
        title="OmniAID",
        description=DESCRIPTION,
        version=API_VERSION,
        docs_url=None,  # the stock page loads its scripts from a CDN
        redoc_url=None,
        lifespan=_lifespan(parts),
    )
    register_problems(app)
    app.include_router(make_router(parts, drain))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(reference_page(app.openapi()))

    register_unknown(app)
    if settings.serves_page:
        from service.page import mount_page

        mount_page(app, parts.scorer, settings)  # at "/", hence last
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=[
                "Authorization",
                "Content-Type",
                "Idempotency-Key",
                "If-None-Match",
                "X-Request-ID",
            ],
            expose_headers=CORS_EXPOSED,
        )
    app.add_middleware(Envelope, settings=settings, metrics=parts.metrics, drain=drain)
    return app


def _lifespan(parts: Parts) -> Any:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await to_thread.run_sync(parts.start, parts.settings.job_workers)
        try:
            yield
        finally:
            await to_thread.run_sync(parts.stop)

    return lifespan
