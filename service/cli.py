"""The `omniaid` command: the one place where the rooms are put together."""

import sys

import typer

from detector.commands import register as register_detector
from detector.errors import DetectorError
from mirage.commands import app as mirage_app
from mirage.errors import MirageError
from service.commands import register as register_service
from service.errors import ServiceError

app = typer.Typer(
    name="omniaid",
    help="Tell whether pictures were made by AI, and show why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(mirage_app, name="mirage")
register_detector(app)
register_service(app)

USER_ERRORS = (DetectorError, MirageError, ServiceError)


def main() -> None:
    """Run the command line; a user's error is one line and exit code 2."""
    try:
        app()
    except USER_ERRORS as error:
        print(f"omniaid: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
