"""`omniaid data`: what the service keeps, and how it is deleted; `omniaid settings`: what can be set."""

import time
from typing import Annotated

import typer

app = typer.Typer(help="What the service keeps, and how it is deleted.", no_args_is_help=True)


@app.command()
def purge() -> None:
    """Delete what is older than the settings allow; the server does this every hour by itself."""
    from service.audit import NOBODY, AuditLog
    from service.retention import purge as remove_old
    from service.state import open_state

    settings, engine = open_state()
    removed = remove_old(engine, settings)
    AuditLog(engine).add(NOBODY, "data purge")
    typer.echo(", ".join(f"{count} {name}" for name, count in removed._asdict().items()) + " deleted")


@app.command()
def forget(
    sha256: Annotated[str, typer.Argument(help="Of the picture's bytes, 64 hexadecimal digits.")],
) -> None:
    """Delete what is kept of one picture: reports, and in jobs its bytes, name, address and report."""
    from service.audit import NOBODY, AuditLog
    from service.errors import ServiceError
    from service.retention import forget as remove_all
    from service.state import open_state

    if len(sha256) != 64 or not set(sha256) <= set("0123456789abcdef"):
        raise ServiceError(f"{sha256!r} is no sha256; give 64 hexadecimal digits")
    _, engine = open_state()
    removed = remove_all(engine, sha256)
    AuditLog(engine).add(NOBODY, "data forget", sha256)
    typer.echo(f"{removed.reports} reports, {removed.items} rows of jobs deleted")


@app.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many entries, latest first.")] = 100,
) -> None:
    """Show the audit log."""
    from service.audit import AuditLog
    from service.state import open_state

    for entry in AuditLog(open_state()[1]).read(limit):
        moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(entry.at))
        typer.echo(f"{moment}  {entry.who}  {entry.action}  {entry.subject}")


def settings() -> None:
    """Print every setting of the service as a Markdown table."""
    from service.settings import settings_table

    typer.echo(settings_table(), nl=False)
