"""Scoring over REST: one picture, a batch, and reports that are known already."""

import time
from collections import Counter
from http import HTTPStatus
from typing import Annotated

import anyio
from anyio import to_thread
from fastapi import APIRouter, Depends, HTTPException, Path, Request, Response

from detector.report import ImageReport
from service.fetching import FetchRejected
from service.idempotency import fingerprint
from service.intake import Sent, read_many, read_one
from service.keys import Caller
from service.parts import Parts
from service.problems import make_problem, refusal_of, responses
from service.schemas import BatchItem, BatchResult, many_pictures_body, one_picture_body
from service.verdicts import Judged

JSON = "application/json"
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="of the picture's bytes, hexadecimal")]


def make_score_router(parts: Parts) -> APIRouter:
    """The routes that score at once."""
    router = APIRouter(tags=["score"])
    caller_for = Depends(parts.access.to("score"))
    settings = parts.settings

    @router.post(
        "/v1/images",
        summary="Score one picture",
        response_model=ImageReport,
        responses=responses(400, 401, 403, 409, 413, 415, 422, 429, 503),
        openapi_extra=one_picture_body(),
    )
    async def score_image(request: Request, caller: Caller = caller_for) -> Response:
        """Send one picture: as the multipart field `file`, as `url`, or as `base64`; exactly one of them.

        The picture is scored in memory and not kept. The header X-Cache says whether the report was
        known, Server-Timing how long it took. An Idempotency-Key makes repeating safe.
        """
        start = time.perf_counter()
        with anyio.fail_after(settings.request_timeout_s):
            sent = await read_one(request, settings.max_upload_bytes)

            async def answer() -> Response:
                judged = await judge(parts, caller, sent)
                return _answer(request, parts, judged, start)

            return await parts.idempotency.once(request, caller, fingerprint([sent]), answer)

    @router.get(
        "/v1/images/{sha256}",
        summary="The known report on a picture",
        response_model=ImageReport,
        responses={304: {"description": "the report did not change"}, **responses(400, 401, 403, 404, 429)},
    )
    async def known_report(request: Request, sha256: Sha256, caller: Caller = caller_for) -> Response:
        """The report on bytes that were scored before, by their hash; If-None-Match is honoured."""
        report = await to_thread.run_sync(parts.verdicts.cache.get, sha256)
        if report is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"no report on {sha256} is known; send the picture")
        headers = {"ETag": parts.verdicts.cache.etag(sha256), "Cache-Control": "private, no-cache"}
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(report.model_dump_json(), media_type=JSON, headers=headers)

    @router.post(
        "/v1/batches",
        summary="Score up to 100 pictures",
        response_model=BatchResult,
        responses=responses(400, 401, 403, 409, 413, 415, 422, 429, 503),
        openapi_extra=many_pictures_body(settings.max_batch_items),
    )
    async def score_batch(request: Request, caller: Caller = caller_for) -> Response:
        """Send pictures as repeated multipart fields `file`, or as JSON `items` with url or base64 each.

        A bad picture costs its own row and nothing else: the answer is 200, with a problem there.
        """
        order = await read_many(request, settings.max_batch_items, settings.max_upload_bytes)

        async def answer() -> Response:
            result = await _score_all(request, parts, caller, order.pictures)
            return Response(result.model_dump_json(), media_type=JSON)

        return await parts.idempotency.once(request, caller, fingerprint(order.pictures), answer)

    return router


async def judge(parts: Parts, caller: Caller, sent: Sent) -> Judged:
    """What becomes of one picture.

    Raises:
        HTTPException: its fault; 415 for what is no picture, 422 for one that cannot be scored or fetched.
        LimitReached: the caller's quota is used up.
        Overloaded: too many pictures wait.
    """
    if sent.fault is not None:
        raise HTTPException(*sent.fault)
    data = sent.data if sent.data is not None else await _fetch(parts, sent.url or "")
    await parts.access.charge(caller, 1)
    judged = await parts.verdicts.ask(data, sent.name)
    await to_thread.run_sync(parts.audit.add, caller.id, "score", judged.report.sha256 or "")
    if judged.report.status == "error":
        known = judged.is_picture
        status = HTTPStatus.UNPROCESSABLE_ENTITY if known else HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        raise HTTPException(status, judged.report.error)
    return judged


async def _fetch(parts: Parts, url: str) -> bytes:
    try:
        return await to_thread.run_sync(parts.downloads.fetch, url, abandon_on_cancel=True)
    except FetchRejected as error:
        raise HTTPException(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error


def _answer(request: Request, parts: Parts, judged: Judged, start: float) -> Response:
    sha256 = judged.report.sha256 or ""
    request.state.sha256 = sha256
    headers = {
        "ETag": parts.verdicts.cache.etag(sha256),
        "X-Cache": "hit" if judged.cached else "miss",
        "Server-Timing": f"total;dur={(time.perf_counter() - start) * 1000:.1f}",
    }
    return Response(judged.report.model_dump_json(), media_type=JSON, headers=headers)


async def _score_all(request: Request, parts: Parts, caller: Caller, pictures: list[Sent]) -> BatchResult:
    """The rows of a batch. Only a few of its pictures wait at a time: a batch must not fill the queue."""
    items: list[BatchItem | None] = [None] * len(pictures)
    turn = anyio.Semaphore(parts.settings.concurrency)

    async def one(index: int, sent: Sent) -> None:
        async with turn:
            items[index] = await _row(request, parts, caller, index, sent)

    async with anyio.create_task_group() as tasks:
        for index, sent in enumerate(pictures):
            tasks.start_soon(one, index, sent)
    rows = [item for item in items if item is not None]
    counts: Counter[str] = Counter((row.report.verdict if row.report else None) or "error" for row in rows)
    return BatchResult(items=rows, counts=dict(counts))


async def _row(request: Request, parts: Parts, caller: Caller, index: int, sent: Sent) -> BatchItem:
    try:
        with anyio.fail_after(parts.settings.request_timeout_s):
            judged = await judge(parts, caller, sent)
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        status, detail, _ = refusal
        return BatchItem(index=index, name=sent.name, problem=make_problem(request.scope, status, detail))
    return BatchItem(index=index, name=sent.name, report=judged.report, cached=judged.cached)
