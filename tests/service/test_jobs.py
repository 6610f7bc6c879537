"""Jobs: nothing is lost and nothing has two results, whatever happens to the workers."""

import threading

import pytest

from detector.report import ImageReport
from service.database import open_database
from service.job_queue import JobQueue
from service.jobs import MAX_CLAIMS, Jobs, Source
from service.settings import Settings
from tests.service.conftest import wait_until

SOURCES = [Source(f"{number}.png", data=bytes([number])) for number in range(3)]


def report(name: str) -> ImageReport:
    return ImageReport(path=name, status="error", error="made for a test")


@pytest.fixture
def engine(database_url):
    opened = open_database(database_url)
    yield opened
    opened.dispose()


@pytest.fixture
def jobs(engine):
    return Jobs(engine, lease_s=60)


def finish(jobs: Jobs, identity: str, lease: str) -> None:
    while (item := jobs.next_item(identity)) is not None:
        assert jobs.store(identity, item.position, report(item.name), lease)
    jobs.finish(identity, lease)


def test_a_job_from_beginning_to_end(jobs):
    identity = jobs.create("me", SOURCES)
    assert jobs.get(identity, "me").status == "queued"
    lease = jobs.claim(identity)
    finish(jobs, identity, lease)
    row = jobs.get(identity, "me")
    assert (row.status, row.scored, row.total) == ("done", 3, 3)
    assert [found.path for found in jobs.results(identity)] == ["0.png", "1.png", "2.png"]


def test_only_one_worker_gets_a_job(jobs):
    identity = jobs.create("me", SOURCES)
    leases: list[str | None] = []
    start = threading.Barrier(8)

    def claim() -> None:
        start.wait()
        leases.append(jobs.claim(identity))

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([lease for lease in leases if lease]) == 1


def test_what_a_dead_worker_left_is_taken_up_and_its_late_words_are_not_heard(engine):
    jobs = Jobs(engine, lease_s=-1)  # every lease is over at once
    identity = jobs.create("me", SOURCES)
    dead = jobs.claim(identity)
    assert jobs.store(identity, 0, report("by the first"), dead)
    patient = Jobs(engine, lease_s=60)
    lease = patient.claim(identity)
    assert lease and not jobs.renew(identity, dead)
    assert not jobs.store(identity, 1, report("late"), dead)
    finish(patient, identity, lease)
    assert not patient.store(identity, 0, report("again"), lease)
    assert [found.path for found in patient.results(identity)] == ["by the first", "1.png", "2.png"]


def test_a_job_that_kills_its_workers_is_given_up(engine):
    jobs = Jobs(engine, lease_s=-1)
    identity = jobs.create("me", SOURCES)
    for _ in range(MAX_CLAIMS):
        assert jobs.claim(identity)
    assert jobs.claim(identity) is None
    assert jobs.get(identity, "me").status == "failed"


def test_pictures_go_as_soon_as_they_are_scored_unless_they_are_asked_for(jobs):
    for keep in (False, True):
        identity = jobs.create("me", SOURCES, keep_uploads=keep)
        lease = jobs.claim(identity)
        jobs.store(identity, 0, report("x"), lease)
        assert _data(jobs, identity) == [b"\0" if keep else None, b"\1", b"\2"]


def test_cancelling_stops_the_worker_and_drops_the_pictures(jobs):
    identity = jobs.create("me", SOURCES)
    lease = jobs.claim(identity)
    assert not jobs.cancel(identity, "somebody else")
    assert jobs.cancel(identity, "me") and not jobs.cancel(identity, "me")
    assert not jobs.renew(identity, lease) and not jobs.store(identity, 0, report("x"), lease)
    assert jobs.claim(identity) is None and _data(jobs, identity) == [None] * 3


def test_others_see_nothing(jobs):
    identity = jobs.create("me", SOURCES)
    assert jobs.get(identity, "you") is None and not jobs.remove(identity, "you")
    assert jobs.page("you", 10, None, None) == []
    assert jobs.remove(identity, "me") and jobs.get(identity, "me") is None


def test_pages_cover_every_job_once(jobs):
    made = [jobs.create("me", SOURCES[:1]) for _ in range(5)]
    seen: list[str] = []
    before = None
    while rows := jobs.page("me", 2, before, None):
        seen += [row.id for row in rows]
        before = rows[-1].id
    assert seen == sorted(made, reverse=True)


def test_a_waiting_job_is_announced_once(jobs):
    identity = jobs.create("me", SOURCES)
    assert list(jobs.waiting(60)) == [identity] and list(jobs.waiting(60)) == []
    lease = jobs.claim(identity)
    jobs.release(identity, lease)
    assert list(jobs.waiting(60)) == [identity]


@pytest.fixture(params=["sqlite", "redis"])
def queue_settings(request, tmp_path):
    url = request.getfixturevalue("redis") if request.param == "redis" else None
    return Settings(state=tmp_path, queue=url)


def test_messages_arrive_in_another_thread(queue_settings):
    seen: list[str] = []
    queue = JobQueue(queue_settings, {"score": seen.append})
    for number in range(5):
        queue.send("score", str(number))
    assert queue.size() == 5
    queue.start(1)
    try:
        wait_until(lambda: len(seen) == 5, 60)
    finally:
        queue.stop()
    assert seen == ["0", "1", "2", "3", "4"]


def test_messages_are_json_and_no_code(queue_settings):
    queue = JobQueue(queue_settings, {"score": print})
    queue.send("score", "abc")
    [message] = queue._huey.storage.enqueued_items()
    assert bytes(message).startswith(b"[") and b'"abc"' in bytes(message)
    queue._huey.storage.flush_all()


def _data(jobs: Jobs, identity: str) -> list[bytes | None]:
    from sqlalchemy import select

    from service.database import job_items

    wanted = select(job_items.c.data).where(job_items.c.job == identity).order_by(job_items.c.position)
    with jobs.engine.connect() as connection:
        return [None if data is None else bytes(data) for data in connection.execute(wanted).scalars()]
