"""`omniaid keys`: make, list, rotate and revoke API keys."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from service.keys import Keys

app = typer.Typer(
    help="API keys of the service; a secret is shown once and kept as a hash.", no_args_is_help=True
)


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="For people: who uses the key.")],
    scope: Annotated[
        list[str], typer.Option(help="What it may do: score, jobs, metrics; repeat for several.")
    ] = ["score", "jobs"],  # noqa: B006, Typer copies it
    days: Annotated[float | None, typer.Option(min=0.0, help="Until it expires. [default: never]")] = None,
    rate_per_minute: Annotated[int | None, typer.Option(min=0, help="Instead of the server's limit.")] = None,
    images_per_day: Annotated[int | None, typer.Option(min=0, help="Instead of the server's quota.")] = None,
) -> None:
    """Make a key and print it: this is the only time."""
    keys = _open("keys create", name)
    typer.echo(keys.create(name, tuple(scope), days, rate_per_minute, images_per_day))


@app.command("list")
def list_keys() -> None:
    """Show every key ever made, without secrets."""
    for row in _keys().every():
        typer.echo(f"{row.id}  {_state(row):<8}  {row.scopes:<18}  {row.name}")


@app.command()
def rotate(
    identity: Annotated[str, typer.Argument(metavar="ID", help="From `omniaid keys list`.")],
    grace_hours: Annotated[float, typer.Option(min=0.0, help="How long the former secret still works.")] = 24,
) -> None:
    """Give a key a new secret and print it; the former one works a while longer."""
    typer.echo(_open("keys rotate", identity).rotate(identity, grace_hours))


@app.command()
def revoke(
    identity: Annotated[str, typer.Argument(metavar="ID", help="From `omniaid keys list`.")],
) -> None:
    """Make a key useless at once."""
    _open("keys revoke", identity).revoke(identity)
    typer.echo(f"{identity} is revoked")


def _keys() -> "Keys":
    from service.keys import Keys
    from service.state import open_state

    return Keys(open_state()[1])


def _open(action: str, subject: str) -> "Keys":
    """The keys, after the audit log was told what is about to happen."""
    from service.audit import NOBODY, AuditLog
    from service.keys import Keys
    from service.state import open_state

    engine = open_state()[1]
    AuditLog(engine).add(NOBODY, action, subject)
    return Keys(engine)


def _state(row: Any) -> str:
    if row.revoked_at is not None:
        return "revoked"
    return "expired" if (row.expires_at or float("inf")) < time.time() else "valid"
