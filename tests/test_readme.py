"""The README stays true: its output is what the command prints, and each of its commands is run somewhere.

Three commands install and test; `.ci/run` takes them out of the README and runs them as they stand.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from detector.card import read_card
from detector.runtime import default_model_path
from mirage.build import build
from tests.mirage.conftest import encode, textured

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text("utf-8")

# Where each kind of command is run, by its first words.
RUN_BY = {
    "pip install . && omniaid scan": ".ci/run",
    "pip install -e '.[dev]' && pytest": ".ci/run",
    "pip install '.[serve]'": "tests/test_dockerfile.py",
    "pip install '.[train,generate]'": "tests/test_readme.py::test_training_packages_resolve",
    "omniaid scan": "tests/test_readme.py",
    "omniaid serve": "tests/e2e/test_http.py",
    "curl": "tests/e2e/test_http.py",
    "omniaid mirage build": "tests/test_readme.py and tests/mirage",
    "omniaid mirage audit": "tests/test_readme.py",
    "omniaid mirage verify": "tests/test_readme.py",
    "omniaid mirage card": "tests/test_readme.py",
    "omniaid train": "tests/test_readme.py and tests/e2e/test_cli_train.py",
    "omniaid ablate": "tests/test_readme.py and tests/detector/test_ablation.py",
    "omniaid calibrate": "tests/test_readme.py and tests/detector/test_calibration_commands.py",
    "omniaid evidence": "tests/test_readme.py",
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def commands() -> list[str]:
    return [line for block in blocks("sh") for line in block.splitlines() if line.strip()]


def omniaid(command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    arguments = shlex.split(command)[1:]
    return subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def checkout(tmp_path):
    """A folder in which the README's relative paths hold."""
    for name in ("examples", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def test_every_command_is_run_somewhere():
    assert commands()
    for command in commands():
        assert any(command.startswith(start) for start in RUN_BY), f"no test runs: {command}"
    for start in RUN_BY:
        assert any(command.startswith(start) for command in commands()), f"gone from the README: {start}"


def test_ci_takes_its_commands_from_the_readme():
    script = (ROOT / ".ci" / "run").read_text()
    for name in ("main", "test"):
        assert f"readme {name}" in script
        assert f"<!-- {name} -->\n```sh\n" in README


def verdicts(output: str) -> dict[str, tuple[str, float]]:
    """File name -> (verdict, probability) of a printed table."""
    row = r"^\s*(ai|real|uncertain|out_of_scope)\s+(\d\.\d+)\s.*?examples/(\S+)"
    rows = re.findall(row, output, flags=re.MULTILINE)
    return {name: (verdict, float(probability)) for verdict, probability, name in rows}


def test_the_printed_output_is_what_the_command_prints():
    shown = verdicts(README.split("<!-- output -->", 1)[1].split("```")[1])
    done = omniaid("omniaid scan examples/", ROOT)
    assert done.returncode == 0, done.stderr
    found = verdicts(done.stdout)
    pictures = {p.name for p in (ROOT / "examples").iterdir() if p.suffix in {".jpg", ".png", ".webp"}}
    assert set(shown) == set(found) == pictures
    for name, (verdict, probability) in found.items():
        assert shown[name][0] == verdict
        assert shown[name][1] == pytest.approx(probability, abs=0.02)


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("omniaid scan")])
def test_scan_commands_run(command, checkout):
    done = omniaid(command, checkout)
    assert done.returncode in (0, 1), done.stderr
    if "--out" in command:
        rows = [json.loads(line) for line in (checkout / "report.jsonl").read_text().splitlines()]
        assert all(row["status"] == "ok" for row in rows)
    else:
        assert done.stdout.startswith("path," if "--format csv" in command else "verdict ")


def test_the_python_lines_run():
    (code,) = blocks("python")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] in {"ai", "real", "uncertain", "out_of_scope"}


def test_the_commands_on_a_finished_data_set_run(checkout):
    for seed in range(4):
        (checkout / "pictures").mkdir(exist_ok=True)
        (checkout / "pictures" / f"{seed}.png").write_bytes(encode(textured(seed)))
    source = {"kind": "folder", "name": "drawn", "path": "pictures", "label": "real", "generator": "camera"}
    recipe = {"name": "small", "sources": [source | {"licence": "CC0", "split": "train"}]}
    (checkout / "small.yaml").write_text(yaml.safe_dump(recipe), "utf-8")
    build(checkout / "small.yaml", checkout / "data" / "open", workers=0)
    for name in ("audit", "verify", "card"):
        (command,) = (c for c in commands() if c.startswith(f"omniaid mirage {name}"))
        done = omniaid(command, checkout)
        assert done.returncode == 0, done.stderr
    assert (checkout / "data" / "open" / "README.md").is_file()


def test_build_and_train_commands_name_real_recipes_and_say_what_is_missing(checkout):
    """The data are gigabytes; here each command runs as printed up to the first thing that is not there."""
    (build_command,) = (c for c in commands() if c.startswith("omniaid mirage build"))
    done = omniaid(build_command, checkout)
    assert done.returncode == 2
    assert "CLONES" in done.stderr
    assert done.stderr.count("\n") <= 2
    for name in ("train", "ablate"):
        (command,) = (c for c in commands() if c.startswith(f"omniaid {name}"))
        done = omniaid(command, checkout)
        assert done.returncode == 2
        assert "data/open holds no manifest.parquet" in done.stderr


def test_a_threshold_of_ones_own_and_the_evidence_command_run(checkout):
    (calibrate,) = (c for c in commands() if c.startswith("omniaid calibrate"))
    folder = checkout / "REALS"
    folder.mkdir()
    for seed in range(3):
        (folder / f"{seed}.png").write_bytes(encode(textured(seed)))
    few = omniaid(calibrate, checkout)
    assert few.returncode == 2
    assert "59" in few.stderr  # what a bound on 5 % needs, at 95 % confidence
    (evidence,) = (c for c in commands() if c.startswith("omniaid evidence"))
    done = omniaid(evidence, checkout)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["container"] == "JPEG"


def test_the_table_of_methods_is_the_catalogue():
    from moe_core.catalogue import load_methods
    from moe_core.commands import markdown_list

    shown = README.split("<!-- methods -->\n", 1)[1].split("\n<!-- /methods -->", 1)[0]
    assert shown == markdown_list(load_methods()).strip()


@pytest.mark.slow
@pytest.mark.network
def test_training_packages_resolve():
    """Both halves of the training install, resolved but not downloaded again."""
    line = next(c for c in commands() if c.startswith("pip install '.[train,generate]'"))
    for half in line.split(" && "):
        command = [sys.executable, "-m", "pip", *shlex.split(half)[1:], "--dry-run", "-q"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
        assert done.returncode == 0, done.stderr


def test_the_quoted_figures_are_the_cards():
    """Each row of the README's table, against the card that ships."""
    card = read_card(default_model_path().with_suffix(".json"))
    rows = re.findall(r"^\| (clean|web|hard) \| (.+) \|$", README, flags=re.MULTILINE)
    assert [tier for tier, _ in rows] == ["clean", "web", "hard"]
    for tier, cells in rows:
        ours, probe = (card.metrics[name]["tiers"][tier] for name in ("model", "frozen_linear_probe"))
        expected = [
            f"{ours['auroc']:.3f}",
            f"{probe['auroc']:.3f}",
            f"{ours['flagged_real']:.1%}",
            f"{ours['flagged_ai']:.1%}",
            f"{ours['decided']:.1%}",
            f"{ours['right_when_decided']:.1%}",
        ]
        assert [cell.strip() for cell in cells.split("|")] == expected
