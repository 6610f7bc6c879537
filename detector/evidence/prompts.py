"""Structured prompts and settings through sd-parsers, where it knows the generator."""

from typing import Any

from mirage.extras import MissingExtra, need

Parameters = dict[str, Any]

PARSERS = {
    "AUTOMATIC1111": "AUTOMATIC1111Parser",
    "ComfyUI": "ComfyUIParser",
    "Fooocus": "FooocusParser",
    "InvokeAI": "InvokeAIParser",
    "NovelAI": "NovelAIParser",
}
# One of its expressions takes quadratic time on repeated "Hashes:{"; its graph walk copies paths.
MAX_BYTES = {"AUTOMATIC1111": 2**15, "ComfyUI": 2**20}
MAX_TEXT = 20_000


def read_with_sd_parsers(tool: str, fields: dict[str, str]) -> Parameters | None:
    """Prompts, model and sampler settings, or None when the package is missing or cannot read them.

    Args:
        tool: a generator, as this package names it.
        fields: texts by key, as the container walkers found them. The package's own extraction from
            files is not used: it misses EXIF of other byte orders and of WebP, and remembers the
            last picture by an address that another picture can have later.
    """
    size = sum(map(len, fields.values()))
    if tool not in PARSERS or size > MAX_BYTES.get(tool, 2**20):
        return None
    try:
        parser = getattr(need("sd_parsers.parsers", "evidence"), PARSERS[tool])
    except (MissingExtra, AttributeError):
        return None
    try:
        info = parser().parse(dict(fields))
        return _parameters(info)
    except Exception:
        # It raises whatever the text makes Python raise; the caller then keeps the raw text.
        return None


def _parameters(info: Any) -> Parameters:
    samplers = info.samplers[:4]
    settings = {
        str(key): str(value)[:200] for key, value in (samplers[0].parameters if samplers else {}).items()
    }
    models = [model.name or model.hash for model in info.models]
    return {
        "prompt": "\n".join(prompt.value for prompt in info.prompts)[:MAX_TEXT],
        "negative_prompt": "\n".join(prompt.value for prompt in info.negative_prompts)[:MAX_TEXT],
        "model": ", ".join(sorted(str(name) for name in models if name))[:500],
        "sampler": str(samplers[0].name)[:100] if samplers else "",
        "settings": dict(list(settings.items())[:20]),
    }
