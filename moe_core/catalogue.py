"""The catalogue: every paper's method under its name, found by looking into `methods/`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, get_type_hints

from pydantic import BaseModel

from moe_core.errors import ConfigError
from moe_core.registry import Registry
from moe_core.report import Report

FAMILIES = ("llm", "multimodal", "federated", "dispatch", "rl", "theory")


@dataclass(frozen=True)
class Paper:
    """Where a method comes from."""

    title: str
    arxiv: str
    venue: str = "ICML 2026"


@dataclass(frozen=True)
class Method:
    """One paper's method.

    Attributes:
        name: on the command line.
        summary: what it does, one line.
        paper: where it comes from.
        family: one of `FAMILIES`.
        config: frozen pydantic model; its defaults are the paper's wherever a CPU allows.
        run: a pure function of the configuration.
        smoke: a configuration that runs in under ten seconds and still does every step.
        bench: the configuration of `omniaid moe bench FAMILY`; the benchmark lays its own `seed` over it,
            and its folder of trained toys where the configuration has a field `toys`.
        real: the same for its option `--real`, on a pretrained model; None where there is none.
    """

    name: str
    summary: str
    paper: Paper
    family: str
    config: type[BaseModel]
    run: Callable[[Any], Report]
    smoke: BaseModel
    bench: BaseModel | None = None
    real: BaseModel | None = None


methods: Registry[Method] = Registry("method")


def method(
    name: str,
    *,
    summary: str,
    paper: Paper,
    family: str,
    smoke: BaseModel,
    bench: BaseModel | None = None,
    real: BaseModel | None = None,
) -> Callable[[Callable[[Any], Report]], Callable[[Any], Report]]:
    """Decorator that files a run function in the catalogue; its argument's type is the configuration.

    Without `bench` the benchmark runs the configuration's defaults.

    Raises:
        ConfigError: the family, the function's annotation or a given configuration is not usable.
    """
    if family not in FAMILIES:
        raise ConfigError(f"family {family!r} is unknown; there are: {', '.join(FAMILIES)}")

    def file(run: Callable[[Any], Report]) -> Callable[[Any], Report]:
        config = get_type_hints(run).get("config")
        if not (isinstance(config, type) and issubclass(config, BaseModel)):
            raise ConfigError(f"{name}: run(config) must annotate config with a pydantic model")
        for given in (smoke, bench, real):
            if given is not None and not isinstance(given, config):
                raise ConfigError(
                    f"{name}: a {type(given).__name__} is given where run takes {config.__name__}"
                )
        methods.register(name)(Method(name, summary, paper, family, config, run, smoke, bench, real))
        return run

    return file


@cache
def load_methods() -> Registry[Method]:
    """The catalogue after importing every module of `moe_core.methods`."""
    package = import_module("moe_core.methods")
    for module in iter_modules(package.__path__):
        import_module(f"moe_core.methods.{module.name}")
    return methods
