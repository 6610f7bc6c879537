"""How many threads this process may really use: CPU affinity and cgroup quota, not the host's CPU count."""

import math
import os
from collections.abc import Iterator
from pathlib import Path

CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def available_threads(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> int:
    """Threads worth starting, at least 1.

    Args:
        root: where the cgroup file systems are mounted.
        own: the file that names this process's cgroups, in the format of /proc/self/cgroup.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = quota_cpus(root, own)
    return max(1, cpus if quota is None else min(cpus, math.ceil(quota)))


def quota_cpus(root: Path, own: Path) -> float | None:
    """The tightest CPU quota of this process's cgroup and its parents, in CPUs; None without one."""
    quotas = [quota for folder in _own_folders(root, own) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _own_folders(root: Path, own: Path) -> Iterator[Path]:
    """Cgroup folders that may hold a CPU quota, from the process's own up to each mount's root."""
    for line in _text(own).splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            mounts = [root, root / "unified"]
        elif "cpu" in controllers.split(","):
            mounts = [root / controllers, root / "cpu"]
        else:
            continue
        for mount in mounts:
            # Inside a container the path may be the host's and absent here: the parents still count.
            inside = mount / path.strip("/")
            yield inside
            yield from (parent for parent in inside.parents if parent.is_relative_to(mount))


def _quota(folder: Path) -> float | None:
    v2 = _text(folder / "cpu.max").split()
    v1 = [*_text(folder / "cpu.cfs_quota_us").split(), *_text(folder / "cpu.cfs_period_us").split()]
    for numbers in (v2, v1):
        try:
            quota, period = (int(number) for number in numbers)
        except ValueError:
            continue  # absent, or "max": no quota
        if quota > 0 and period > 0:
            return quota / period
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return ""
