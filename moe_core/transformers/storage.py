"""Models with blocks that no stock class has: swap them in, save, load by plain `from_pretrained`.

For every supported architecture a configuration and a model class `moe_core_<architecture>` are registered
with the Auto classes. Their configuration holds `moe_core = {"version": 1, "layers": {"0": {"kind": ...,
"args": {...}}, ...}, ...}`; building a model swaps the blocks named there before the weights are read. The
other name also keeps stock code from loading such a folder with fresh random weights.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, JsonValue
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from moe_core.errors import ConfigError
from moe_core.factored import FactoredExperts, Factors
from moe_core.glu import DenseGlu, RoutedGlu
from moe_core.registry import Registry
from moe_core.transformers.find import check_finite

VERSION = 1
PREFIX = "moe_core_"
# Package of transformers -> stem of its class names.
ARCHITECTURES = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen2_moe": "Qwen2Moe",
    "qwen3_moe": "Qwen3Moe",
    "mixtral": "Mixtral",
    "olmoe": "Olmoe",
    "deepseek_v2": "DeepseekV2",
    "deepseek_v3": "DeepseekV3",
    "gpt_oss": "GptOss",
}

restorers: Registry[Callable[[PreTrainedModel, JsonValue], None]] = Registry("saved setting")


@dataclass(frozen=True)
class Shape:
    """One kind of block that can be swapped in.

    Attributes:
        place: path below the decoder layer.
        build: makes it with weights of the right shapes from JSON arguments.
    """

    place: str
    build: Callable[..., nn.Module]


def _factored(**args: Any) -> FactoredExperts:
    factors = {kind: Factors.model_validate(args.pop(kind)) for kind in ("gate", "up", "down")}
    return FactoredExperts(**(args | factors))


SHAPES = {
    "routed_glu": Shape("mlp", RoutedGlu),
    "dense_glu": Shape("mlp", DenseGlu),
    "factored_experts": Shape("mlp.experts", _factored),
}


def build(kind: str, args: Mapping[str, JsonValue]) -> nn.Module:
    """A block of that kind, with zero weights.

    Raises:
        ConfigError: the kind is unknown.
    """
    if kind not in SHAPES:
        raise ConfigError(f"block {kind!r} is unknown; there are: {', '.join(sorted(SHAPES))}")
    return SHAPES[kind].build(**args)


def swap(
    model: PreTrainedModel, layer: int, kind: str, args: Mapping[str, JsonValue], block: nn.Module
) -> None:
    """Put a block into a decoder layer and write its shape into the configuration; the old block is let go.

    Args:
        model: of a supported architecture; its class becomes the one that loads such shapes.
        layer: index of the decoder layer.
        kind: of `SHAPES`.
        args: that `build` makes the same shapes from.
        block: made by `build`, with its weights filled in.

    Raises:
        ConfigError: the architecture is not supported.
    """
    like = next(model.model.layers[layer].parameters())
    _place(model, layer, kind, block.to(device=like.device, dtype=like.dtype))
    notes = note(model)
    layers = notes.setdefault("layers", {})
    layers[str(layer)] = {"kind": kind, "args": _json(args)}


def note(model: PreTrainedModel) -> dict[str, Any]:
    """The model's `config.moe_core`, to be added to; a method's own key is given to its restorer at loading.

    Raises:
        ConfigError: the architecture is not supported.
    """
    if not hasattr(model.config, "moe_core"):
        _adopt(model)
    return model.config.moe_core


def save(model: PreTrainedModel, folder: str | Path) -> None:
    """Write the model so that `AutoModelForCausalLM.from_pretrained(folder)` gives it back.

    Raises:
        ConfigError: a weight is not finite.
    """
    check_finite(model)
    model.save_pretrained(folder)


def load(folder: str | Path, **options: Any) -> PreTrainedModel:
    """The causal language model in a folder, in evaluation mode.

    Raises:
        ConfigError: there is none, or its architecture is unknown, or keys are missing.
    """
    if not Path(folder).is_dir():
        raise ConfigError(f"{folder} holds no causal language model: there is no such folder")
    try:
        options = {"dtype": torch.float32, "output_loading_info": True, **options}
        model, info = AutoModelForCausalLM.from_pretrained(folder, **options)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"{folder} holds no causal language model of a known architecture: {reason}"
        ) from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise ConfigError(f"{folder} lacks {len(missing)} weights, the first of them {missing[0]}")
    return model.eval()


@contextmanager
def trial(model: PreTrainedModel) -> Iterator[PreTrainedModel]:
    """The model itself, which gets its blocks, class and configuration back afterwards.

    Blocks that are replaced inside are kept alive, so it costs the memory of what replaces them.
    """
    holders = {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values()
    configs = [(holder, holder.__class__, deepcopy(holder.__dict__)) for holder in holders]
    mlps = [(layer, layer.mlp, getattr(layer.mlp, "experts", None)) for layer in model.model.layers]
    own, conversions = model.__class__, model.__dict__.get("_weight_conversions")
    try:
        yield model
    finally:
        for holder, kind, values in configs:
            holder.__class__ = kind
            holder.__dict__ = values
        for layer, mlp, experts in mlps:
            layer.mlp = mlp
            if experts is not None:
                mlp.experts = experts
        model.__class__ = own
        model.__dict__["_weight_conversions"] = conversions


def materialise(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of stock architecture with factored experts multiplied out; it takes the memory of the original.

    Raises:
        ConfigError: a block of the model has no counterpart in the stock architecture.
    """
    notes = getattr(model.config, "moe_core", {})
    kinds = {entry["kind"] for entry in notes.get("layers", {}).values()}
    if kinds - {"factored_experts"}:
        raise ConfigError(f"blocks {', '.join(sorted(kinds))} have no counterpart in a stock architecture")
    base: Any = type(model).__mro__[1] if isinstance(model.config.model_type, str) and notes else type(model)
    stem = base.config_class
    values = model.config.to_dict()
    for name in ("moe_core", "model_type", "architectures"):
        values.pop(name, None)
    plain = base(stem.from_dict(values))
    weights = {name: value for name, value in model.state_dict().items() if ".mlp.experts." not in name}
    for index, layer in enumerate(model.model.layers):
        experts = getattr(layer.mlp, "experts", None)
        if experts is not None:
            weights |= {f"model.layers.{index}.mlp.experts.{n}": v for n, v in _fused(experts).items()}
    plain.load_state_dict(weights)
    return plain.eval()


def _fused(experts: nn.Module) -> dict[str, torch.Tensor]:
    if not isinstance(experts, FactoredExperts):
        return experts.state_dict()
    gate_up = torch.cat([experts.gate.whole(), experts.up.whole()], dim=1)
    return {"gate_up_proj": gate_up, "down_proj": experts.down.whole()}


def _json(args: Mapping[str, Any]) -> dict[str, JsonValue]:
    return {
        name: value.model_dump(mode="json") if isinstance(value, BaseModel) else value
        for name, value in args.items()
    }


def _place(model: PreTrainedModel, layer: int, kind: str, block: nn.Module) -> None:
    *above, last = SHAPES[kind].place.split(".")
    owner = model.model.layers[layer].get_submodule(".".join(above))
    setattr(owner, last, block)


def _adopt(model: PreTrainedModel) -> None:
    """Make a stock model one of the registered classes, in place."""
    kind = model.config.model_type
    config_class, model_class = CLASSES.get(kind, (None, None))
    if model_class is None or type(model) is not model_class.__mro__[1]:
        known = ", ".join(stem + "ForCausalLM" for stem in ARCHITECTURES.values())
        raise ConfigError(f"{type(model).__name__} ({kind}) cannot take other blocks; there are: {known}")
    for holder in {id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values():
        if type(holder) is config_class.__mro__[1]:
            holder.__class__ = config_class
            # Older configurations keep the type as an instance value too.
            holder.__dict__.pop("model_type", None)
    model.__class__ = model_class
    model.config.moe_core = {"version": VERSION, "layers": {}}
    model.config.architectures = [model_class.__name__]
    # The stock class would write experts one by one on saving; these keys are stored as they are.
    model._weight_conversions = []


def _restore(model: PreTrainedModel) -> None:
    notes = getattr(model.config, "moe_core", None) or {}
    if notes.get("version", VERSION) != VERSION:
        raise ConfigError(f"config.moe_core has version {notes['version']}; {VERSION} can be read")
    for layer, entry in notes.get("layers", {}).items():
        _place(model, int(layer), entry["kind"], build(entry["kind"], entry["args"]))


def _restore_settings(model: PreTrainedModel) -> None:
    from moe_core.catalogue import load_methods

    notes = getattr(model.config, "moe_core", None) or {}
    for key, value in notes.items():
        if key in ("version", "layers"):
            continue
        if key not in list(restorers):
            load_methods()
        restorers[key](model, value)


def _classes() -> Iterator[tuple[str, tuple[Any, Any]]]:
    for package, stem in ARCHITECTURES.items():
        try:
            configs = import_module(f"transformers.models.{package}.configuration_{package}")
            models = import_module(f"transformers.models.{package}.modeling_{package}")
        except ModuleNotFoundError:
            # An older transformers without this architecture still serves the others.
            continue
        config = getattr(configs, f"{stem}Config")
        yield config.model_type, _pair(config, getattr(models, f"{stem}ForCausalLM"))


def _pair(config: Any, model: Any) -> tuple[Any, Any]:
    """Subclasses of a stock configuration and model class; in their module, which transformers inspects."""
    kind = PREFIX + config.model_type
    own_config = type(
        f"MoeCore{config.__name__}", (config,), {"model_type": kind, "__module__": config.__module__}
    )

    def __init__(self: Any, config: Any, *args: Any, **options: Any) -> None:
        model.__init__(self, config, *args, **options)
        # A table of its own: changing one model must not change others that share its configuration.
        config.moe_core = deepcopy(getattr(config, "moe_core", None) or {"version": VERSION, "layers": {}})
        _restore(self)
        self.post_init()
        _restore_settings(self)

    body = {"__init__": __init__, "config_class": own_config, "__module__": model.__module__}
    return own_config, type(f"MoeCore{model.__name__}", (model,), body)


def _register() -> dict[str, tuple[Any, Any]]:
    table = dict(_classes())
    for config, model in table.values():
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoModelForCausalLM.register(config, model, exist_ok=True)
    return table


CLASSES = _register()
