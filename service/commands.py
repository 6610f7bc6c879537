"""The commands of the service, and `omniaid serve`: start the web page and the REST API."""

import socket
from pathlib import Path
from typing import Annotated, Any

import typer

from service.data_commands import app as data_app
from service.data_commands import settings as print_settings
from service.errors import MissingExtra, ServiceError, SettingsError
from service.key_commands import app as keys_app
from service.worker import work

# Top-level modules that only the `serve` extra brings.
EXTRA_MODULES = {
    "anyio",
    "fastapi",
    "gradio",
    "httpcore",
    "httpx",
    "huey",
    "prometheus_client",
    "pydantic_settings",
    "python_multipart",
    "sqlalchemy",
    "starlette",
    "uvicorn",
}
GRACE_S = 5  # open page connections are cut after this on shutdown


def register(app: typer.Typer) -> None:
    """Add the service's commands to the command line `app`."""
    app.command("serve")(serve)
    app.command("worker")(work)
    app.command("settings")(print_settings)
    app.add_typer(keys_app, name="keys")
    app.add_typer(data_app, name="data")


def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; OMNIAID_HOST. [default: 127.0.0.1]")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port, 0 for any free one; OMNIAID_PORT. [default: 8000]")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="ONNX model with its card beside it; OMNIAID_MODEL. [default: packaged]"),
    ] = None,
) -> None:
    """Serve the web page at / and the REST API under /v1."""
    try:
        _run(host=host, port=port, model=model)
    except ServiceError as error:
        typer.echo(f"omniaid: {error}", err=True)
        raise typer.Exit(2) from error


def _run(**flags: Any) -> None:
    try:
        import uvicorn

        from service.settings import read_settings

        settings = read_settings(**flags)
        listener = _listen(settings.host, settings.port)
        from service.app import create_app
        from service.drain import Drain, run_draining
        from service.logs import start_logging

        if settings.serves_page:
            import service.page  # noqa: F401, a missing package must be a sentence here as well
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in EXTRA_MODULES:
            raise
        raise MissingExtra(f"the web service needs {error.name}: install omniaid[serve]") from error
    start_logging(settings.log_format)
    drain = Drain()
    app = create_app(settings, drain)
    config = uvicorn.Config(app, server_header=False, timeout_graceful_shutdown=GRACE_S, log_config=None)
    host, port = listener.getsockname()[:2]
    typer.echo(f"OmniAID listens on http://{f'[{host}]' if ':' in host else host}:{port}")
    run_draining(config, listener, drain, settings.drain_s)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise SettingsError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
