"""The API reference at /docs: plain HTML made from the OpenAPI document, no outside scripts."""

from html import escape
from typing import Any

CURL = {"multipart/form-data": " -F file=@picture.jpg"}
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
body{color:#1f2937;background:#fff}
code,pre{font-family:ui-monospace,monospace;font-size:.9em}
pre{background:#f3f4f6;padding:.75rem;border-radius:.5rem;overflow-x:auto}
section{border-top:1px solid #d1d5db;margin-top:1.5rem}
td{padding:.2rem 1rem .2rem 0;vertical-align:top}a{color:#1d4ed8}
@media(prefers-color-scheme:dark){body{color:#e5e7eb;background:#0b0f19}pre{background:#1f2937}a{color:#93c5fd}}
"""


def reference_page(openapi: dict[str, Any]) -> str:
    """The HTML page that describes every operation of an OpenAPI document."""
    info = openapi["info"]
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(info['title'])} API</title>"
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><h1>{escape(info['title'])} API {escape(info['version'])}</h1>"
        f"<p>{escape(info['description'])}</p>"
        '<p><a href="./openapi.json">OpenAPI document</a> · <a href="./">Web page</a></p>'
        f"{operations}</body></html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    sent = "".join(CURL.get(media_type, "") for media_type in content)
    verb = "" if sent or method == "get" else f" -X {method.upper()}"
    rows = "".join(
        f"<tr><td><code>{escape(code)}</code></td><td>{escape(answer.get('description', ''))}</td>"
        f"<td><code>{escape(', '.join(answer.get('content', {})))}</code></td></tr>"
        for code, answer in sorted(operation["responses"].items())
    )
    return (
        f"<section><h2>{escape(operation.get('summary', path))}</h2>"
        f"<p><code>{method.upper()} {escape(path)}</code></p>"
        f"<p>{escape(operation.get('description', ''))}</p>"
        f"<pre>curl{verb}{sent} http://127.0.0.1:8000{escape(path)}</pre><table>{rows}</table></section>"
    )
