"""The `omniaid moe` commands: one per registered method, made from its configuration's fields."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from moe_core.errors import ConfigError, MissingPackage

if TYPE_CHECKING:
    from moe_core.catalogue import Method
    from moe_core.registry import Registry

SIMPLE = (int, float, bool, str, Path)


def catalogue() -> "Registry[Method]":
    """The methods; imported late, because they bring torch and transformers.

    Raises:
        MissingPackage: a package of the extra `moe` is not installed.
    """
    try:
        from moe_core.catalogue import load_methods

        return load_methods()
    except ModuleNotFoundError as error:
        raise MissingPackage(
            f"this needs the package {error.name}, which is not installed: pip install 'omniaid[moe]'"
        ) from error


class MethodGroup(TyperGroup):
    """The group whose commands are the catalogue's methods, besides its own."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Own commands, then the methods."""
        return [*super().list_commands(ctx), *catalogue()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name; None when there is none."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in list(catalogue()):
            return own
        return method_command(catalogue()[cmd_name])


app = typer.Typer(
    cls=MethodGroup, help="Run the mixture-of-experts methods of the catalogue.", no_args_is_help=True
)


@app.callback()
def moe() -> None:
    """Run the mixture-of-experts methods of the catalogue."""


@app.command("list")
def list_command(
    form: Annotated[
        Literal["table", "markdown"], typer.Option("--format", help="For people, or for the README.")
    ] = "table",
) -> None:
    """Show every method with its paper."""
    known = catalogue()
    if form == "markdown":
        typer.echo(markdown_list(known))
        return
    table = Table("method", "family", "what it does", "paper")
    for name in known:
        found = known[name]
        table.add_row(name, found.family, found.summary, f"arXiv {found.paper.arxiv}")
    Console().print(table)


def markdown_list(known: "Registry[Method]") -> str:
    """The catalogue as a Markdown table, by family."""
    lines = ["| command | what it does | paper |", "| --- | --- | --- |"]
    for found in sorted((known[name] for name in known), key=lambda each: (each.family, each.name)):
        link = f"[{found.paper.title}](https://arxiv.org/abs/{found.paper.arxiv})"
        lines.append(f"| `omniaid moe {found.name}` | {found.summary} | {link} |")
    return "\n".join(lines)


@app.command("bench")
def bench_command(
    group: Annotated[str, typer.Argument(help="Family of methods, such as llm.")],
    out: Annotated[Path, typer.Option(help="Folder for GROUP.json and GROUP.md.")] = Path("bench"),
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each method, with seeds 0, 1, ..")] = 3,
    toys: Annotated[Path | None, typer.Option(help="Folder where trained toy models are kept.")] = None,
    smoke: Annotated[bool, typer.Option("--smoke", help="Settings that take seconds.")] = False,
    real: Annotated[bool, typer.Option("--real", help="On a pretrained model, one seed will do.")] = False,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be repeated.")] = None,
) -> None:
    """Run a family of methods against their baselines and write what came out."""
    if smoke and real:
        raise ConfigError("--smoke and --real are two different benchmarks; give one")
    known = catalogue()
    from moe_core.bench import bench

    found = bench(
        known,
        group,
        range(seeds),
        scale="smoke" if smoke else "real" if real else "bench",
        toys=toys,
        only=method or (),
        told=lambda line: typer.echo(line, err=True),
    )
    found.write(out)
    typer.echo(found.markdown(), nl=False)
    failed = [entry.method for entry in found.entries if entry.failure]
    if failed:
        raise ConfigError(f"did not run: {', '.join(failed)}; the page says why")


def method_command(method: "Method") -> Any:
    """The command of one method: an option per field, `--config`, `--smoke` and `--out`."""
    run = _runner(method)
    options = [*OWN_OPTIONS, *(field_option(name, method.config) for name in method.config.model_fields)]
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    text = f"{method.summary}\n\n{method.paper.title}, {method.paper.venue}, arXiv {method.paper.arxiv}."
    single = typer.Typer(add_completion=False)
    single.command(method.name, help=text)(run)
    command = typer.main.get_command(single)
    command.name = method.name
    return command


def field_option(name: str, config: type[BaseModel]) -> inspect.Parameter:
    """The option of one field of a configuration; values other than plain ones are given as JSON."""
    field = config.model_fields[name]
    kind = _plain(field.annotation)
    default = field.get_default(call_default_factory=True)
    shown = "required" if default is PydanticUndefined else f"default {_text(default)}"
    choices = f" ({', '.join(map(str, get_args(kind)))})" if get_origin(kind) is Literal else ""
    flag = f"--{name.replace('_', '-')}"
    flags = f"{flag}/--no-{flag[2:]}" if kind is bool else flag
    help_text = f"{field.description or ''}{choices} ({shown})".strip()
    plain = kind if kind in SIMPLE else str
    return _option(name, plain, flags, help_text)


def _option(name: str, kind: type, flags: str, help_text: str, default: Any = None) -> inspect.Parameter:
    annotation = Annotated[kind | None, typer.Option(flags, help=help_text, show_default=False)]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


OWN_OPTIONS = (
    _option("file", Path, "--config", "JSON or YAML file of settings."),
    _option("smoke", bool, "--smoke", "Start from settings that take seconds.", default=False),
    _option("out", Path, "--out", "Folder for report.json and report.md."),
)


def _plain(annotation: Any) -> Any:
    """The annotation without `| None`."""
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return kinds[0] if len(kinds) == 1 else str
    return annotation


def _text(value: Any) -> str:
    return value.model_dump_json() if isinstance(value, BaseModel) else str(value)


def _runner(method: "Method") -> Callable[..., None]:
    def run(file: Path | None, smoke: bool, out: Path | None, **given: Any) -> None:
        settings = method.smoke.model_dump() if smoke else {}
        settings |= _read(file) if file else {}
        chosen = {
            name: _parsed(value, method.config, name) for name, value in given.items() if value is not None
        }
        report = method.run(_validated(method, settings | chosen))
        if out is not None:
            report.write(out)
        typer.echo(report.markdown(), nl=False)

    return run


def _parsed(value: Any, config: type[BaseModel], name: str) -> Any:
    """The value of an option: JSON where the field is not a plain one."""
    kind = _plain(config.model_fields[name].annotation)
    if not isinstance(value, str) or kind is str or get_origin(kind) is Literal:
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".json":
            content = json.loads(text)
        else:
            import yaml

            content = yaml.safe_load(text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, ImportError) as error:
        raise ConfigError(f"{path} cannot be read as settings: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds {type(content).__name__}; settings are a mapping")
    return content


def _validated(method: "Method", settings: dict[str, Any]) -> BaseModel:
    try:
        return method.config.model_validate(settings)
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(step) for step in problem["loc"]) or "settings"
        raise ConfigError(
            f"{method.name}: {place}: {problem['msg']} (given: {problem['input']!r})"
        ) from error
