"""The web page: a Gradio interface at `/` over the same scorer as the REST API."""

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

from anyio import to_thread
from fastapi import FastAPI, HTTPException
from fastapi.responses import FileResponse

from mirage.errors import UnreadableImage
from service import render
from service.examples import Example, find_examples
from service.scorer import Scorer
from service.settings import Settings

# Gradio and onnxruntime read these while they are imported; unset, they report usage to their makers.
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["ORT_DISABLE_TELEMETRY"] = "1"

import gradio as gr

ASSETS = Path(__file__).resolve().parent / "assets"
SYSTEM_FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
SYSTEM_MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace")
FORGOTTEN_S = 300  # an upload that was never scored is removed after this
HEADER = (
    '<header class="oa-header"><h1>OmniAID</h1><p>Was this picture made by AI? OmniAID looks at its pixels '
    "with a team of experts, shows how sure it is, and says so when it does not know.</p></header>"
)
FOOTER = (
    '<footer class="oa-footer">A verdict is a statistical estimate, not proof. Screenshots, documents and '
    'heavily edited or tiny pictures are not judged reliably. <a href="docs">API reference</a></footer>'
)

PRESS = """
element.addEventListener("click", (event) => {
  const pressed = event.target.closest("button[data-index]");
  if (pressed) trigger("select", { index: Number(pressed.dataset.index) });
});
"""


class Judge:
    """Turns an upload or an example into a result card."""

    def __init__(self, scorer: Scorer, examples: list[Example]) -> None:
        self._scorer = scorer
        self._examples = examples

    async def upload(self, file: dict[str, Any] | None) -> tuple[str, None]:
        """The result card for an uploaded file, which is deleted as soon as it was read."""
        if file is None:
            return render.EMPTY, None
        path = Path(file["path"])
        try:
            data = await to_thread.run_sync(_take, path)
        except FileNotFoundError:
            return render.refusal("the upload is gone; please choose the picture again"), None
        return await self._card(data, file.get("orig_name") or path.name), None

    async def example(self, chosen: gr.EventData) -> str:
        """The result card for the example that was pressed."""
        index = chosen.index
        if not isinstance(index, int) or not 0 <= index < len(self._examples):
            return render.refusal(f"there is no example {index}")
        path = self._examples[index].path
        return await self._card(await to_thread.run_sync(path.read_bytes), path.name)

    async def _card(self, data: bytes, name: str) -> str:
        report = await self._scorer.score(data, name)
        if report.status == "error":
            return render.refusal(report.error or "the picture cannot be scored", report.path)
        try:
            preview = await self._scorer.thumbnail(data)
        except UnreadableImage as error:
            return render.refusal(str(error), report.path)
        return render.result(report, self._scorer.card.thresholds, preview, len(data))


def _take(path: Path) -> bytes:
    """The bytes of an uploaded file, which is then deleted with the folder made for it."""
    try:
        return path.read_bytes()
    finally:
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def build_page(scorer: Scorer, examples: list[Example], uploads: Path) -> gr.Blocks:
    """The interface, not yet mounted anywhere.

    Args:
        scorer: judges the pictures.
        examples: offered on the page, served under /examples.
        uploads: the folder that Gradio puts uploads into.
    """
    judge = Judge(scorer, examples)
    # No pre-processing: Gradio's would copy the file, or re-encode a picture (gradio 7657).
    options: dict[str, Any] = {"api_visibility": "private", "concurrency_limit": None, "preprocess": False}
    with gr.Blocks(title="OmniAID", analytics_enabled=False, delete_cache=(FORGOTTEN_S, FORGOTTEN_S)) as page:
        gr.HTML(HEADER)
        with gr.Row(elem_id="oa-main"):
            with gr.Column(scale=2, min_width=280, elem_id="oa-left"):
                upload = gr.File(label="Picture: drop, choose or paste", elem_id="oa-upload", height=190)
                gallery = _gallery(examples) if examples else None
            with gr.Column(scale=3, min_width=280, elem_id="oa-right"):
                card = gr.HTML(render.EMPTY, elem_id="oa-result")
        gr.HTML(FOOTER)
        upload.upload(judge.upload, upload, [card, upload], **options)
        if gallery is not None:
            gallery.select(judge.example, None, card, **options)
    _confine(upload, uploads)
    return page


def _gallery(examples: list[Example]) -> gr.HTML:
    return gr.HTML(render.gallery(examples), elem_id="oa-gallery", js_on_load=PRESS)


def _confine(upload: gr.File, folder: Path) -> None:
    """Let `upload` name files in `folder` only.

    A visitor can send any path or address in place of an upload; mounted inside another
    application, Gradio reads or fetches it.
    """
    folder = folder.resolve()

    async def keep(path: str) -> str:
        if not Path(path).resolve().is_relative_to(folder):
            raise gr.Error("only uploaded files can be judged")
        return path

    upload.async_move_resource_to_block_cache = keep  # type: ignore[assignment, method-assign]


def mount_page(app: FastAPI, scorer: Scorer, settings: Settings) -> None:
    """Serve the page at `/` of `app`; whatever `app` already routes keeps its place."""
    uploads = tempfile.TemporaryDirectory(prefix="omniaid-", ignore_cleanup_errors=True)
    os.environ["GRADIO_TEMP_DIR"] = uploads.name
    examples = find_examples(settings.examples)
    _serve_examples(app, examples)
    gr.mount_gradio_app(
        app,
        build_page(scorer, examples, Path(uploads.name)),
        path="/",
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        show_error=False,
        max_file_size=settings.max_upload_bytes,
        theme=gr.themes.Base(
            primary_hue="indigo", neutral_hue="slate", font=SYSTEM_FONT, font_mono=SYSTEM_MONO
        ),
        css_paths=[ASSETS / "page.css"],
        head=f"<script>{(ASSETS / 'page.js').read_text('utf-8')}</script>",
    )
    _remove_at_exit(app, uploads)


def _serve_examples(app: FastAPI, examples: list[Example]) -> None:
    by_name = {example.path.name: example.path for example in examples}

    @app.get("/examples/{name}", include_in_schema=False)
    async def example(name: str) -> FileResponse:
        if name not in by_name:
            raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no example {name!r}")
        return FileResponse(by_name[name], headers={"Cache-Control": "max-age=3600"})


def _remove_at_exit(app: FastAPI, uploads: tempfile.TemporaryDirectory[str]) -> None:
    inner = app.router.lifespan_context

    @contextlib.asynccontextmanager
    async def lifespan(served: Any) -> AsyncIterator[Any]:
        with uploads:
            async with inner(served) as state:
                yield state

    app.router.lifespan_context = lifespan
