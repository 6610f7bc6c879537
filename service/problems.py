"""Errors on the wire: application/problem+json (RFC 9457), one shape for every refusal."""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """Why a request was refused."""

    type: str = "about:blank"
    title: str = Field(examples=["Unsupported Media Type"])
    status: int = Field(examples=[415])
    detail: str = Field(examples=["the bytes are not a picture of a supported format"])
    instance: str = Field(description="path of the request", examples=["/v1/images"])
    request_id: str = Field(description="the same as the X-Request-ID header")


def problem(scope: Any, status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    """The response that refuses the request of an ASGI `scope`.

    Args:
        scope: the request's ASGI scope; its state carries the request id.
        status: HTTP status code, 400 or above.
        detail: one sentence on what was wrong and what is allowed.
        headers: sent as well.
    """
    body = Problem(
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        instance=scope["path"],
        request_id=scope.get("state", {}).get("request_id", ""),
    )
    return JSONResponse(body.model_dump(), status, headers=headers, media_type=MEDIA_TYPE)


def responses(*codes: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI entries that declare a problem for each status code."""
    schema = {"schema": Problem.model_json_schema()}
    return {code: {"description": HTTPStatus(code).phrase, "content": {MEDIA_TYPE: schema}} for code in codes}


def register_problems(app: FastAPI) -> None:
    """Make `app` answer its own and its visitors' errors as problems."""

    @app.exception_handler(HTTPException)
    async def refuse(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers) if error.headers else None
        return problem(request.scope, error.status_code, str(error.detail), headers)

    @app.exception_handler(RequestValidationError)
    async def refuse_input(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return problem(request.scope, HTTPStatus.BAD_REQUEST, f"{where}: {first['msg']}")
