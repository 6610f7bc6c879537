"""Pictures out of requests: multipart, URL or base64, exactly one way for each picture."""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException, Request
from starlette.datastructures import FormData, UploadFile

from service.fetching import check_url, name_of

FIELD, UNNAMED = "file", "upload"
WAYS = ("file", "url", "base64")
MULTIPART = ("multipart/form-data", "application/x-www-form-urlencoded")
MAX_URL = 4096
MAX_NAME = 255


@dataclass(frozen=True)
class Sent:
    """One picture as it was sent: bytes, an address that is yet to be fetched, or what is wrong with it.

    Attributes:
        name: of the file, for the report.
        data: the bytes, unless there is an address or a fault.
        url: an address that was looked at but not fetched.
        fault: status and sentence for this picture alone.
    """

    name: str
    data: bytes | None = None
    url: str | None = None
    fault: tuple[int, str] | None = None


@dataclass(frozen=True)
class Order:
    """What a request asks for: pictures, and options besides."""

    pictures: list[Sent]
    options: dict[str, Any] = field(default_factory=dict)


async def read_one(request: Request, max_bytes: int) -> Sent:
    """The one picture of a request.

    Raises:
        HTTPException: 400 for none, several, or several ways; 413; 415 for a body of another kind.
    """
    if _is_json(request):
        body = await _json(request)
        _only(body, (*WAYS, "name"))
        return _strictly(_from_fields(body, max_bytes))
    form = await _form(request)
    files = form.getlist(FIELD)
    fields = {key: value for key, value in form.multi_items() if key in ("url", "base64", "name")}
    if files and not {"url", "base64"} & set(fields):
        if len(files) != 1:
            raise _bad(f"{len(files)} fields named {FIELD!r} were sent; send exactly one")
        return _strictly(await _from_file(files[0], max_bytes))
    if files:
        raise _bad(f"several of {', '.join(WAYS)} were sent; send exactly one")
    return _strictly(_from_fields(fields, max_bytes))


async def read_many(request: Request, max_items: int, max_bytes: int, options: tuple[str, ...] = ()) -> Order:
    """The pictures of a request, each with its own fault if it has one.

    Args:
        request: multipart with repeated fields `file`, or JSON with a list `items`.
        max_items: more are refused.
        max_bytes: of one picture.
        options: names of other fields that may be sent.

    Raises:
        HTTPException: 400 for a request as a whole that cannot be understood, 413 for too many items.
    """
    if _is_json(request):
        body = await _json(request)
        _only(body, ("items", *options))
        items = body.get("items")
        if not isinstance(items, list):
            raise _bad("the field 'items' must be a list of objects with url or base64")
        _check_count(len(items), max_items)
        pictures = [_from_fields(item, max_bytes) for item in items]
        return Order(pictures, {name: body[name] for name in options if name in body})
    form = await _form(request)
    files = form.getlist(FIELD)
    _check_count(len(files), max_items)
    pictures = [await _from_file(file, max_bytes) for file in files]
    return Order(pictures, {name: form[name] for name in options if name in form})


def _is_json(request: Request) -> bool:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        return True
    if kind and kind not in MULTIPART:
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"the body is {kind[:100]}; send multipart/form-data or application/json",
        )
    return False


async def _json(request: Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise _bad(f"the body is not JSON; send one of {', '.join(WAYS)}") from error
    if not isinstance(body, dict):
        raise _bad(f"the body must be a JSON object with one of {', '.join(WAYS)}")
    return body


async def _form(request: Request) -> FormData:
    form = await request.form()
    if not form and request.headers.get("content-type") is None:
        raise _bad(f"nothing was sent; send a picture as {FIELD!r}, url or base64")
    return form


def _only(body: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    unknown = sorted(str(name) for name in set(body) - set(allowed))
    if unknown:
        raise _bad(f"unknown field {unknown[0][:100]!r}; allowed are: {', '.join(allowed)}")


async def _from_file(file: Any, max_bytes: int) -> Sent:
    if not isinstance(file, UploadFile):
        return Sent(UNNAMED, fault=(HTTPStatus.BAD_REQUEST, f"the field {FIELD!r} is text; send a file"))
    name = (file.filename or UNNAMED)[:MAX_NAME]
    if (file.size or 0) > max_bytes:
        return Sent(name, fault=_too_large(max_bytes))
    return Sent(name, await file.read())


def _from_fields(item: Any, max_bytes: int) -> Sent:
    """A picture given by text; what is wrong with it is its fault, not the request's."""
    if not isinstance(item, Mapping):
        return _faulty("each item must be an object with url or base64")
    sent = [way for way in WAYS if item.get(way) is not None]
    name = item.get("name")
    if name is not None and not isinstance(name, str):
        return _faulty("the field 'name' must be text")
    if len(sent) != 1:
        return _faulty(f"{len(sent)} of {', '.join(WAYS)} were sent; send exactly one")
    return READERS[sent[0]](item[sent[0]], (name or "")[:MAX_NAME], max_bytes)


def _from_text_file(value: Any, name: str, max_bytes: int) -> Sent:
    return _faulty(f"the field {FIELD!r} is a multipart upload; in JSON send url or base64")


def _from_url(value: Any, name: str, max_bytes: int) -> Sent:
    if not isinstance(value, str) or len(value) > MAX_URL:
        return _faulty(f"the field 'url' must be text of at most {MAX_URL} characters")
    try:
        check_url(value)
    except ValueError as error:
        return _faulty(f"the field 'url': {error}")
    return Sent(name or name_of(value)[:MAX_NAME], url=value)


def _from_base64(value: Any, name: str, max_bytes: int) -> Sent:
    if not isinstance(value, str):
        return _faulty("the field 'base64' must be text")
    text = value.partition(",")[2] if value.startswith("data:") else value
    if len(text) > max_bytes * 4 // 3 + 4:
        return Sent(name or UNNAMED, fault=_too_large(max_bytes))
    try:
        return Sent(name or UNNAMED, base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return _faulty("the field 'base64' is not base64")


READERS = {"file": _from_text_file, "url": _from_url, "base64": _from_base64}


def _strictly(sent: Sent) -> Sent:
    if sent.fault is not None:
        raise HTTPException(*sent.fault)
    return sent


def _check_count(count: int, max_items: int) -> None:
    if not count:
        raise _bad(f"no picture was sent; send fields named {FIELD!r}, or JSON with a list 'items'")
    if count > max_items:
        raise HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"{count} pictures were sent; at most {max_items} are taken"
        )


def _faulty(sentence: str) -> Sent:
    return Sent(UNNAMED, fault=(HTTPStatus.BAD_REQUEST, sentence))


def _too_large(max_bytes: int) -> tuple[int, str]:
    sentence = f"the upload is larger than {max_bytes:,} bytes, the most this server takes"
    return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, sentence


def _bad(sentence: str) -> HTTPException:
    return HTTPException(HTTPStatus.BAD_REQUEST, sentence)
