"""API keys and limits, in SQLite and in PostgreSQL."""

import time

import pytest
from sqlalchemy import select

from service.database import SCHEMA, api_keys, open_database, schema
from service.errors import SettingsError
from service.keys import Caller, KeyProblem, Keys
from service.limits import LimitReached, Limits
from service.settings import Settings


@pytest.fixture
def engine(database_url):
    opened = open_database(database_url)
    yield opened
    opened.dispose()


def test_a_key_opens_and_is_not_kept(engine):
    keys = Keys(engine)
    token = keys.create("a team", ("score",))
    caller = keys.find(token)
    assert caller is not None and caller.scopes == {"score"} and token.startswith(f"oa_{caller.id}_")
    with engine.connect() as connection:
        row = connection.execute(select(api_keys)).one()
    assert token.rpartition("_")[2] not in str(row)


@pytest.mark.parametrize("spoil", [lambda t: t[:-1], lambda t: t + "x", lambda t: "", lambda t: "oa_0_x"])
def test_a_wrong_key_opens_nothing(engine, spoil):
    keys = Keys(engine)
    assert keys.find(spoil(keys.create("a"))) is None


def test_an_expired_and_a_revoked_key_open_nothing(engine):
    keys = Keys(engine)
    expired, revoked = keys.create("a", days=-1), keys.create("b")
    keys.revoke(revoked.split("_")[1])
    assert keys.find(expired) is None and keys.find(revoked) is None


def test_rotation_gives_the_former_secret_its_grace(engine):
    keys = Keys(engine)
    first = keys.create("a")
    identity = first.split("_")[1]
    second = keys.rotate(identity, grace_hours=1)
    assert keys.find(first) and keys.find(second) and first != second
    third = keys.rotate(identity, grace_hours=0)
    assert keys.find(third) and not keys.find(second) and not keys.find(first)


def test_mistakes_are_sentences(engine):
    keys = Keys(engine)
    with pytest.raises(KeyProblem, match="choose from score, jobs, metrics"):
        keys.create("a", ("everything",))
    with pytest.raises(KeyProblem, match="no key nobody"):
        keys.revoke("nobody")
    with pytest.raises(KeyProblem, match="no valid key nobody"):
        keys.rotate("nobody")


def test_requests_are_counted_by_caller(engine):
    limits = Limits(engine, Settings(rate_per_minute=3))
    caller, other = Caller("a"), Caller("b")
    _away_from_the_end_of_a_minute()
    for _ in range(3):
        limits.count_request(caller)
    with pytest.raises(LimitReached, match="at most 3 requests per minute") as caught:
        limits.count_request(caller)
    assert 1 <= caught.value.retry_after_s <= 60
    limits.count_request(other)
    limits.count_request(Caller("c", rate_per_minute=0))


def test_what_is_refused_does_not_use_up_the_quota(engine):
    limits = Limits(engine, Settings())
    caller = Caller("a", images_per_day=10)
    limits.count_images(caller, 8)
    with pytest.raises(LimitReached, match="at most 10 pictures per day"):
        limits.count_images(caller, 3)
    limits.count_images(caller, 2)
    with pytest.raises(LimitReached):
        limits.count_images(caller, 1)


def test_a_database_of_another_version_is_refused(database_url):
    engine = open_database(database_url)
    with engine.begin() as connection:
        connection.execute(schema.update().values(version=SCHEMA + 1))
    engine.dispose()
    with pytest.raises(SettingsError, match=f"schema {SCHEMA + 1}; this program needs {SCHEMA}"):
        open_database(database_url)


@pytest.mark.parametrize("url", ["mysql://x/y", "nonsense", "sqlite://", "sqlite:////proc/nowhere/a.db"])
def test_a_database_that_cannot_be_used_is_a_sentence(url):
    with pytest.raises(SettingsError) as caught:
        open_database(url)
    assert "\n" not in str(caught.value)


def _away_from_the_end_of_a_minute() -> None:
    if time.time() % 60 > 55:
        time.sleep(6)
