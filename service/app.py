"""The web application: REST and page over one scorer."""

from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from detector.scoring import Detector
from service.envelope import Envelope
from service.page import mount_page
from service.problems import register_problems
from service.reference import reference_page
from service.routes import make_router, register_unknown
from service.scorer import Scorer
from service.settings import Settings

API_VERSION = "1"
DESCRIPTION = "Tells whether a picture was made by AI, shows the evidence, and knows when it does not know."


def create_app(settings: Settings) -> FastAPI:
    """The application, with its model loaded.

    Raises:
        ModelError: the model file or its card cannot be used.
    """
    scorer = Scorer(Detector(settings.model, settings.threads), settings.concurrency)
    app = FastAPI(
        title="OmniAID",
        description=DESCRIPTION,
        version=API_VERSION,
        docs_url=None,  # the stock page loads its scripts from a CDN
        redoc_url=None,
    )
    register_problems(app)
    app.include_router(make_router(scorer, settings))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(reference_page(app.openapi()))

    register_unknown(app)
    mount_page(app, scorer, settings)  # at "/", hence last
    app.add_middleware(Envelope, max_upload_bytes=settings.max_upload_bytes)
    return app
