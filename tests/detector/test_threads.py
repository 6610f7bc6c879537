import os

import pytest

from detector.threads import available_threads, quota_cpus


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def own(tmp_path):
    return tmp_path / "proc-self-cgroup"


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cgroup"


def test_version_2_quota(root, own):
    own.write_text("0::/box/job\n")
    write(root / "box/job/cpu.max", "150000 100000\n")
    assert quota_cpus(root, own) == 1.5


def test_the_tightest_quota_on_the_way_up_counts(root, own):
    own.write_text("0::/box/job\n")
    write(root / "box/job/cpu.max", "max 100000\n")
    write(root / "box/cpu.max", "50000 100000\n")
    write(root / "cpu.max", "400000 100000\n")
    assert quota_cpus(root, own) == 0.5


def test_version_1_quota_with_joined_controllers(root, own):
    own.write_text("4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n1:cpuset:/\n")
    write(root / "cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "200000\n")
    write(root / "cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n")
    assert quota_cpus(root, own) == 2.0


def test_a_path_of_the_host_that_is_absent_in_the_container_falls_back_to_the_mount(root, own):
    own.write_text("3:cpu,cpuacct:/docker/abc\n")
    write(root / "cpu/cpu.cfs_quota_us", "300000\n")
    write(root / "cpu/cpu.cfs_period_us", "100000\n")
    assert quota_cpus(root, own) == 3.0


def test_hybrid_mount(root, own):
    own.write_text("1:cpu:/\n0::/\n")
    write(root / "cpu/cpu.cfs_quota_us", "-1\n")
    write(root / "cpu/cpu.cfs_period_us", "100000\n")
    write(root / "unified/cpu.max", "100000 100000\n")
    assert quota_cpus(root, own) == 1.0


def test_the_quota_of_another_controller_is_not_the_cpu_quota(root, own):
    own.write_text("3:cpuset:/a\n")
    write(root / "cpuset/a/cpu.max", "100000 100000\n")
    assert quota_cpus(root, own) is None


@pytest.mark.parametrize("text", ["max 100000", "", "0 0", "-1 100000", "many few", "1", "\xff\xfe"])
def test_no_usable_quota(root, own, text):
    own.write_text("0::/\n")
    root.mkdir()
    (root / "cpu.max").write_bytes(text.encode("latin-1"))
    assert quota_cpus(root, own) is None


def test_a_system_without_cgroups(root, own):
    assert quota_cpus(root, own) is None
    assert available_threads(root, own) >= 1


@pytest.mark.parametrize(("quota", "expected"), [("50000", 1), ("150000", 2), ("900000", 4), ("max", 4)])
def test_threads_are_the_quota_rounded_up_within_the_affinity(root, own, monkeypatch, quota, expected):
    own.write_text("0::/\n")
    write(root / "cpu.max", f"{quota} 100000\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 4, 5}, raising=False)
    assert available_threads(root, own) == expected
