"""The `omniaid` command: the one place where the rooms are put together."""

import sys

import typer

from detector.ablation_commands import register as register_ablation
from detector.commands import register as register_detector
from detector.errors import DetectorError
from detector.evaluation_commands import register as register_evaluation
from detector.export_commands import register as register_export
from detector.import_commands import register as register_import
from mirage.commands import app as mirage_app
from mirage.errors import MirageError
from moe_core.commands import app as moe_app
from moe_core.errors import MoeError
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
app.add_typer(moe_app, name="moe")
register_detector(app)
register_evaluation(app)
register_import(app)
register_export(app)
register_ablation(app)
register_service(app)

USER_ERRORS = (DetectorError, MirageError, MoeError, ServiceError)


def main() -> None:
    """Run the command line; a user's error is one line and exit code 2."""
    try:
        app()
    except USER_ERRORS as error:
        print(f"omniaid: {error}", file=sys.stderr)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
