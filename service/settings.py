"""Settings of the service; the only place that reads the environment."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from mirage.decode import Limits
from service.errors import SettingsError

MIB = 2**20
PREFIX = "OMNIAID_"
REPOSITORY_EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
Words = Annotated[tuple[str, ...], NoDecode]


def _state_folder() -> Path:
    return Path.home() / ".local" / "state" / "omniaid"


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
    page: bool | None = Field(
        default=None, description="serve the web page at /; default: only while no key is required"
    )
    examples: Path = Field(
        default=REPOSITORY_EXAMPLES, description="pictures offered on the page, if it exists"
    )

    concurrency: int = Field(default=2, ge=1, le=256, description="scorings at the same time; others wait")
    queue_limit: int = Field(default=64, ge=1, le=10_000, description="scorings that may wait; more get 503")
    request_timeout_s: float = Field(
        default=60, gt=0, le=3600, description="for one picture, waiting included"
    )
    ready_timeout_s: float = Field(
        default=10.0, gt=0, le=300, description="for the scoring done by GET /ready"
    )
    drain_s: float = Field(default=20, ge=0, le=3600, description="for running work after SIGTERM")

    max_upload_bytes: int = Field(default=32 * MIB, ge=1024, le=100 * MIB, description="of one picture")
    max_batch_bytes: int = Field(default=128 * MIB, ge=1024, le=2048 * MIB, description="of a batch or job")
    max_batch_items: int = Field(default=100, ge=1, le=100, description="pictures in a batch")
    max_job_items: int = Field(default=1000, ge=1, le=10_000, description="pictures in a job")
    max_pixels: int = Field(
        default=64_000_000,
        ge=1024,
        le=1_000_000_000,
        description="a picture may claim, checked before decoding",
    )
    decode_timeout_s: float = Field(default=20, gt=0, le=600, description="then the decoder is replaced")
    decoder_memory_bytes: int = Field(
        default=2048 * MIB, ge=512 * MIB, description="address space of one decoder process"
    )
    fetch_timeout_s: float = Field(default=15, gt=0, le=300, description="for a URL, redirects included")
    fetch_hosts: Words = Field(
        default=(),
        description="hosts, comma separated, that may have private addresses for URLs and webhooks",
    )

    require_keys: bool = Field(default=False, description="refuse /v1 without an API key")
    rate_per_minute: int = Field(
        default=0, ge=0, description="requests by key, without keys by address; 0 is no limit"
    )
    images_per_day: int = Field(default=0, ge=0, description="pictures by key or address; 0 is no quota")
    cors_origins: Words = Field(
        default=(), description="origins, comma separated, whose pages may read answers; default: none"
    )

    state: Path = Field(
        default_factory=_state_folder, description="folder of the SQLite files, made when it is missing"
    )
    database: SecretStr | None = Field(
        default=None,
        description="SQLAlchemy URL, e.g. postgresql+psycopg://...; default: SQLite in the state folder",
    )
    queue: SecretStr | None = Field(
        default=None, description="redis:// URL of the job queue; default: SQLite in the state folder"
    )
    job_workers: int = Field(
        default=1,
        ge=0,
        le=64,
        description="jobs at a time in this process; 0 leaves them to `omniaid worker`",
    )
    lease_s: float = Field(
        default=120, ge=1, le=3600, description="a job whose worker is silent for longer is given to another"
    )
    sweep_s: float = Field(
        default=5, ge=0.1, le=600, description="between looks for jobs that wait or were left"
    )
    webhook_secret: SecretStr | None = Field(
        default=None, min_length=24, description="signs webhooks; without it jobs with a webhook are refused"
    )
    webhook_tries: int = Field(default=6, ge=1, le=20, description="before a webhook is given up")
    webhook_wait_s: float = Field(
        default=5, ge=0.1, le=3600, description="before the first repetition; then fourfold"
    )

    cache_days: float = Field(default=7, ge=0, description="a report is reused for the same bytes; 0 never")
    retention_days: float = Field(default=30, gt=0, description="finished jobs are then deleted")
    audit_days: float = Field(default=365, gt=0, description="entries of the audit log are then deleted")
    log_format: Literal["json", "text"] = Field(default="json", description="of the log on standard error")

    @field_validator("fetch_hosts", "cors_origins", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        return (
            tuple(word.strip() for word in value.split(",") if word.strip())
            if isinstance(value, str)
            else value
        )

    @field_validator("queue")
    @classmethod
    def _only_redis(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not value.get_secret_value().startswith(
            ("redis://", "rediss://", "unix://")
        ):
            raise ValueError("the queue must be a redis://, rediss:// or unix:// URL")
        return value

    @property
    def limits(self) -> Limits:
        """What one picture may cost."""
        return Limits(max_bytes=self.max_upload_bytes, max_pixels=self.max_pixels)

    @property
    def serves_page(self) -> bool:
        """Whether the web page, which asks for no key, is served."""
        return not self.require_keys if self.page is None else self.page

    @property
    def database_url(self) -> str:
        """Where the service keeps its state."""
        if self.database is not None:
            return self.database.get_secret_value()
        return f"sqlite:///{self.state / 'omniaid.db'}"


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
        said = "unusable" if _is_secret(field) else repr(first["input"])
        raise SettingsError(f"{name} is {said}: {first['msg']}") from error


def settings_table() -> str:
    """The table of every setting in Markdown, as docs/settings.md holds it."""
    rows = [
        f"| `{PREFIX}{name.upper()}` | {_shown(name, field)} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(("| variable | default | meaning |", "|---|---|---|", *rows)) + "\n"


def _shown(name: str, field: Any) -> str:
    if name == "examples":
        return "`examples` of the source tree"
    if name == "state":
        return "`~/.local/state/omniaid`"
    if field.default in (None, ()):
        return "none"
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"


def _is_secret(field: str) -> bool:
    info = Settings.model_fields.get(field)
    return info is not None and "SecretStr" in str(info.annotation)
