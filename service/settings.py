"""Settings of the service; the only place that reads the environment."""

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.errors import SettingsError

MIB = 2**20
PREFIX = "OMNIAID_"
REPOSITORY_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


class Settings(BaseSettings):
    """What an operator can set; each field is the environment variable `OMNIAID_<FIELD>`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=8000, ge=0, le=65535, description="0 takes any free port")
    model: Path | None = Field(
        default=None, description="ONNX model with its card beside it; default: packaged"
    )
    threads: int | None = Field(
        default=None, ge=1, le=1024, description="of one scoring; default: from the CPUs"
    )
    concurrency: int = Field(default=2, ge=1, le=256, description="scorings at the same time; others wait")
    max_upload_bytes: int = Field(default=32 * MIB, ge=1024, le=100 * MIB, description="of one picture")
    ready_timeout_s: float = Field(
        default=10.0, gt=0, le=300, description="for the scoring done by GET /ready"
    )
    examples: Path = Field(
        default=REPOSITORY_EXAMPLES, description="pictures offered on the page, if it exists"
    )


def read_settings(**flags: Any) -> Settings:
    """The settings: a flag that is not None wins over the environment, which wins over the default.

    Raises:
        SettingsError: a value cannot be used; names the setting, the value and what is allowed.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else "settings"
        name = f"--{field}" if field in given else f"{PREFIX}{field.upper()}"
        raise SettingsError(f"{name} is {first['input']!r}: {first['msg']}") from error
