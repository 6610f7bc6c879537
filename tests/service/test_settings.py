"""Settings: flag over environment over default; a bad value is one sentence."""

from pathlib import Path

import pytest

from service.errors import SettingsError
from service.settings import PREFIX, Settings, read_settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for field in Settings.model_fields:
        monkeypatch.delenv(PREFIX + field.upper(), raising=False)


def test_the_default_listens_on_this_machine_only():
    settings = read_settings()
    assert (settings.host, settings.port, settings.model) == ("127.0.0.1", 8000, None)


def test_environment_is_read(monkeypatch):
    for name, value in {
        "MODEL": "/models/a.onnx",
        "HOST": "0.0.0.0",
        "PORT": "9000",
        "MAX_UPLOAD_BYTES": "4096",
        "THREADS": "3",
        "CONCURRENCY": "5",
    }.items():
        monkeypatch.setenv(PREFIX + name, value)
    settings = read_settings()
    assert settings.model == Path("/models/a.onnx")
    assert (settings.host, settings.port) == ("0.0.0.0", 9000)
    assert (settings.max_upload_bytes, settings.threads, settings.concurrency) == (4096, 3, 5)


def test_a_flag_wins_and_an_absent_flag_does_not(monkeypatch):
    monkeypatch.setenv("OMNIAID_PORT", "9000")
    assert read_settings(port=1234, host=None).port == 1234
    assert read_settings(port=None).port == 9000


def test_an_empty_variable_means_the_default(monkeypatch):
    monkeypatch.setenv("OMNIAID_THREADS", "")
    assert read_settings().threads is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("PORT", "70000"),
        ("PORT", "http"),
        ("MAX_UPLOAD_BYTES", "-1"),
        ("THREADS", "0"),
        ("CONCURRENCY", "none"),
    ],
)
def test_a_bad_variable_is_named_with_its_value(monkeypatch, field, value):
    monkeypatch.setenv(PREFIX + field, value)
    with pytest.raises(SettingsError, match=rf"^OMNIAID_{field} is '{value}': .+") as caught:
        read_settings()
    assert "\n" not in str(caught.value)


def test_a_bad_flag_is_named_as_the_flag():
    with pytest.raises(SettingsError, match=r"^--port is 70000: "):
        read_settings(port=70000)


def test_settings_cannot_change_while_serving():
    with pytest.raises(ValueError, match="frozen"):
        read_settings().port = 1


def test_no_other_module_reads_the_environment():
    root = Path(__file__).resolve().parents[2] / "service"
    readers = ("os.environ.get", "getenv", "os.environ.setdefault", "BaseSettings")
    found = {
        path.name
        for path in root.rglob("*.py")
        if any(reader in path.read_text("utf-8") for reader in readers)
    }
    assert found == {"settings.py"}


def test_a_secret_is_not_repeated_in_its_error(monkeypatch):
    monkeypatch.setenv("OMNIAID_WEBHOOK_SECRET", "too short")
    with pytest.raises(SettingsError, match=r"^OMNIAID_WEBHOOK_SECRET is unusable: ") as caught:
        read_settings()
    assert "too short" not in str(caught.value)


def test_no_secret_has_a_default_and_none_is_shown(monkeypatch):
    assert read_settings().webhook_secret is None
    monkeypatch.setenv("OMNIAID_DATABASE", "postgresql+psycopg://user:password@host/name")
    assert "password" not in repr(read_settings())


def test_words_are_separated_by_commas(monkeypatch):
    monkeypatch.setenv("OMNIAID_CORS_ORIGINS", "https://a.example, https://b.example")
    assert read_settings().cors_origins == ("https://a.example", "https://b.example")


def test_only_a_redis_queue_is_taken(monkeypatch):
    monkeypatch.setenv("OMNIAID_QUEUE", "amqp://host")
    with pytest.raises(SettingsError, match=r"OMNIAID_QUEUE is unusable: .*redis://"):
        read_settings()


@pytest.mark.parametrize(
    ("given", "keys", "served"), [(None, False, True), (None, True, False), (True, True, True)]
)
def test_the_page_asks_for_no_key_and_so_is_off_where_keys_are_required(given, keys, served):
    assert read_settings(page=given, require_keys=keys).serves_page is served
