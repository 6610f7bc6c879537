"""An evaluation from pictures to page: real scoring by a small model, and tables from its predictions."""

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pyarrow.parquet
import pytest
import typer
from onnx import TensorProto, helper
from PIL import Image
from typer.testing import CliRunner

from detector.errors import DetectorError
from detector.evaluation.bootstrap import Plan
from detector.evaluation.documents import write_report
from detector.evaluation.errors import EvaluationError
from detector.evaluation.predictions import DataInfo, Origin, read_origin, read_predictions, write_predictions
from detector.evaluation.report import Report
from detector.evaluation.run import PROBE, Settings, evaluate_predictions
from detector.evaluation_commands import choose_transforms, register, split_baselines
from detector.metrics import summarise
from detector.scoring import Detector
from mirage.transforms import TRANSFORMS
from tests.mirage.written_set import WrittenSet

ROOT = Path(__file__).resolve().parents[2]
PLAN = Plan(rounds=60)
SIDE = 160
EXPERTS = ("human", "animal", "artifact")


def make_model(folder: Path, name: str = "bright", sign: float = 1.0, temperature: float = 1.0) -> Path:
    """A real ONNX file of the product's signature that calls bright pictures AI.

    Its two views differ: the native one sees the centre only.
    """
    import hashlib

    weights = np.array([[-sign / 12, sign / 12]] * 3, np.float32)
    nodes = [
        helper.make_node("Cast", ["pixels"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["x"], ["mean"], axes=[2, 3], keepdims=0),
        helper.make_node("Sub", ["mean", "middle"], ["moved"]),
        helper.make_node("MatMul", ["moved", "w"], ["logits"]),
        helper.make_node("MatMul", ["mean", "v"], ["gates"]),
    ]
    constants = {
        "w": weights,
        "v": np.full((3, len(EXPERTS)), 1 / 765, np.float32),
        "middle": np.array(128.0, np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "bright",
        [helper.make_tensor_value_info("pixels", TensorProto.UINT8, ["batch", 3, 16, 16])],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2]),
            helper.make_tensor_value_info("gates", TensorProto.FLOAT, ["batch", len(EXPERTS)]),
        ],
        [onnx.numpy_helper.from_array(value, key) for key, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / f"{name}.onnx"
    path.write_bytes(model.SerializeToString())
    trained = [{"label": "ai", "source": "s", "generator": "Painter 1", "pictures": 9}]
    card = {
        "name": name,
        "version": "1",
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "experts": EXPERTS,
        "preprocessing": {"size_px": 16, "views": ["global", "native"]},
        "temperature": temperature,
        "bias": 0.25,
        "thresholds": {
            "ai": 0.7,
            "real": 0.3,
            "false_positive_rate": 0,
            "false_negative_rate": 0,
            "how": "by hand",
        },
        "min_side_px": 64,
        "training": {"data": {"train": {"pictures": 9, "sources": trained}}},
    }
    path.with_suffix(".json").write_text(json.dumps(card))
    return path


def paint(seed: int, bright: float) -> bytes:
    """A picture with a smooth pattern around a brightness."""
    rng = np.random.default_rng(seed)
    coarse = np.clip(rng.normal(bright, 40, (6, 6, 3)), 0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """Two subsets of a benchmark and one picture that is none."""
    folder, seed = tmp_path_factory.mktemp("trees") / "bench", 0
    for subset in ("progan", "newest"):
        for topic in ("cat", "dog"):
            for kind, bright in (("0_real", 124), ("1_fake", 132)):
                place = folder / subset / topic / kind
                place.mkdir(parents=True)
                for number in range(6):
                    seed += 1
                    (place / f"{number}.png").write_bytes(paint(seed, bright))
    (folder / "progan" / "cat" / "0_real" / "0.png").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def app() -> typer.Typer:
    made = typer.Typer(pretty_exceptions_enable=False)
    made.command("other")(lambda: None)
    register(made)
    return made


def run(app: typer.Typer, *arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["eval", *map(str, arguments)], catch_exceptions=False)
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def done(app, tree, model, tmp_path_factory) -> tuple[Path, int, str]:
    """The folder, exit code and output of one whole run."""
    out = tmp_path_factory.mktemp("out")
    code, output = run(
        app, tree, "--model", model, "--out", out, "--rounds", 60, "--views", "global", "--threads", 1,
        "--transform", "clean", "--transform", "jpeg-50", "--transform", "resize-0.25",
    )  # fmt: skip
    return out, code, output


@pytest.fixture(scope="module")
def report(done) -> Report:
    return Report.model_validate_json((done[0] / "report.json").read_text("utf-8"))


def test_a_run_says_what_it_read_and_that_a_picture_was_bad(done, tree):
    out, code, output = done
    assert code == 3
    assert "bench: layout aigcdetectbenchmark, 48 pictures" in output
    assert "48 pictures (24 real, 24 AI) under 3 transforms; 3 of 144 rows could not be read" in output
    assert output.splitlines()[-1] == str(out / "report.html")


def test_there_is_one_row_per_picture_and_transform_and_a_bad_one_is_an_error(done, tree):
    rows = read_predictions(done[0] / "predictions.parquet")
    assert len(rows) == len({(row["key"], row["transform"]) for row in rows}) == 48 * 3
    bad = [row for row in rows if row["error"]]
    assert {row["key"] for row in bad} == {"progan/cat/0_real/0.png"} and len(bad) == 3
    assert all(row["margin"] is None and row["verdict"] is None for row in bad)
    assert {row["transform"] for row in bad} == {"clean", "jpeg-50", "resize-0.25"}


def test_rows_hold_what_a_scan_says_of_the_same_picture(done, tree, model):
    detector = Detector(model, threads=1)
    for row in read_predictions(done[0] / "predictions.parquet"):
        if row["transform"] != "clean" or row["error"]:
            continue
        scanned = detector.score_file(tree / row["path"])
        assert row["probability"] == pytest.approx(scanned.probability, abs=1e-5)
        assert (row["verdict"], row["width"], row["format"]) == (scanned.verdict, SIDE, "PNG")
        assert row["gates"] == pytest.approx(list(scanned.gates.values()), abs=1e-5)
        margins = np.array(row["logits"]).reshape(2, 2) @ [-1, 1]
        assert row["margin"] == pytest.approx(margins.mean(), abs=1e-5)
        assert (row["source"], row["subset"]) == (row["key"].rsplit("/", 2)[0], row["subset"])


def test_transforms_change_the_picture_and_a_small_one_is_out_of_scope(done):
    rows = {(row["key"], row["transform"]): row for row in read_predictions(done[0] / "predictions.parquet")}
    small = [row for (_, transform), row in rows.items() if transform == "resize-0.25" and not row["error"]]
    assert {row["width"] for row in small} == {SIDE // 4}
    assert {row["verdict"] for row in small} == {"out_of_scope"}
    moved = [
        rows[key, "jpeg-50"]["margin"] - row["margin"]
        for (key, transform), row in rows.items()
        if transform == "clean" and not row["error"]
    ]
    assert 0 < max(map(abs, moved)) < 2


def test_the_report_counts_and_names_what_was_bad(report):
    counts = report.counts
    assert (counts.rows, counts.pictures, counts.real, counts.ai, counts.errors) == (144, 48, 24, 24, 3)
    assert {failure.key for failure in report.failures} == {"progan/cat/0_real/0.png"}
    assert report.origin.data == DataInfo(name="bench", layout="aigcdetectbenchmark", split="")


def test_every_table_is_there_or_missing_with_a_reason(report):
    names = {table.name for table in report.tables}
    assert names == {
        *("overall", "generators", "held_out_generators", "domains", "real_sources", "subsets", "macro"),
        *("flips", "baselines", "differences"),
    }
    assert [(gap.table, gap.why) for gap in report.missing] == [
        ("families", "no AI picture names its generator's family")
    ]


def rows_of(report: Report, table: str, transform: str = "clean") -> dict:
    return {row.name: row for row in report.table(table).rows if row.transform == transform}


def test_groups_are_measured_against_the_other_class(report):
    generators = rows_of(report, "generators")
    assert {name: row.pictures for name, row in generators.items()} == {
        "ProGAN": {"real": 23, "ai": 12}, "newest": {"real": 23, "ai": 12},
    }  # fmt: skip
    assert {row.facts["trained on"] for row in generators.values()} == {"no"}
    sources = rows_of(report, "real_sources")
    assert sources["progan/cat"].pictures == {"real": 5, "ai": 24}
    assert rows_of(report, "subsets")["ProGAN"].pictures == {"real": 11, "ai": 12}
    mean = rows_of(report, "macro")["mean over generators"]
    values = [row.values["auroc"].value for row in generators.values()]
    assert mean.values["auroc"].value == pytest.approx(np.mean(values), abs=1e-6)
    assert mean.pictures == {"real": 23, "ai": 24}


def test_values_are_those_of_the_card(report, done, model):
    """The two ways to a figure must agree: this report and what training writes into a card."""
    from detector.calibration import Calibration
    from detector.card import read_card

    card = read_card(model.with_suffix(".json"))
    rows = read_predictions(done[0] / "predictions.parquet")
    rows = [{**row, "tier": row["transform"]} for row in rows if row["transform"] == "clean"]
    table = summarise(rows, Calibration(card.temperature, card.bias), card.thresholds)
    overall = rows_of(report, "overall")["all pictures"]
    for name, value in table["tiers"]["clean"].items():
        if name == "tpr_at_1_percent_fpr":
            reason = "23 real pictures; fewer than 100 cannot resolve this rate"
            assert overall.values[name].undefined == reason
        elif name in overall.values:
            assert overall.values[name].value == pytest.approx(value, abs=1e-4), name
    assert table["unreadable"] == report.counts.errors / 3


def test_held_out_generators_are_those_that_were_not_trained_on(done, tmp_path):
    names = tmp_path / "names.txt"
    settings = Settings(plan=PLAN, trained_on=("ProGAN",))
    found = evaluate_predictions(done[0] / "predictions.parquet", settings).report
    assert set(rows_of(found, "held_out_generators")) == {"newest"}
    assert rows_of(found, "held_out_generators")["newest"].pictures == {"real": 23, "ai": 12}
    facts = {name: row.facts["trained on"] for name, row in rows_of(found, "generators").items()}
    assert facts == {"ProGAN": "yes", "newest": "no"}
    assert "mean over held-out generators" in rows_of(found, "macro")
    all_known = evaluate_predictions(
        done[0] / "predictions.parquet", Settings(plan=PLAN, trained_on=("ProGAN", "newest"))
    ).report
    reasons = {gap.table: gap.why for gap in all_known.missing}
    assert reasons["held_out_generators"] == "the model learnt from every generator here"
    assert not names.exists()


def test_flips_compare_the_same_pictures(report, done):
    rows = {(row["key"], row["transform"]): row for row in read_predictions(done[0] / "predictions.parquet")}
    keys = [key for (key, transform), row in rows.items() if transform == "clean" and not row["error"]]
    verdicts = [(rows[key, "clean"]["verdict"], rows[key, "resize-0.25"]["verdict"]) for key in keys]
    decided = {"ai": "ai", "real": "real"}  # a picture out of scope is as undecided as an uncertain one
    pairs = [(decided.get(a), decided.get(b)) for a, b in verdicts]
    flips = rows_of(report, "flips", "resize-0.25")["all pictures"].values
    assert flips["changed"].value == pytest.approx(np.mean([a != b for a, b in pairs]), abs=1e-6)
    assert flips["became_uncertain"].value == flips["changed"].value > 0
    assert (flips["swapped"].value, flips["became_decided"].value) == (0, 0)
    assert {row.name for row in report.table("flips").rows} == {
        "all pictures",
        "real pictures",
        "AI pictures",
    }


def test_the_order_of_rows_does_not_matter_and_pictures_are_matched_by_key(done, tmp_path):
    path = done[0] / "predictions.parquet"
    rows, origin = read_predictions(path), read_origin(path)
    shuffled = [rows[place] for place in np.random.default_rng(0).permutation(len(rows))]
    write_predictions(shuffled, tmp_path / "p.parquet", origin)
    settings = Settings(plan=PLAN, views=("global",))
    for name in ("overall", "generators", "flips", "differences"):
        one, two = (
            {(row.name, row.transform): row.values for row in evaluate(file, settings).table(name).rows}
            for file in (path, tmp_path / "p.parquet")
        )
        assert one.keys() == two.keys()
        for pair, values in one.items():
            for measure, estimate in values.items():
                assert two[pair][measure].value == pytest.approx(estimate.value, abs=2e-6), (pair, measure)
                assert two[pair][measure].high == pytest.approx(estimate.high, abs=2e-6), (pair, measure)


def evaluate(path: Path, settings: Settings) -> Report:
    return evaluate_predictions(path, settings).report


def test_one_view_alone_is_compared_with_all_views(report, done):
    rows = [row for row in read_predictions(done[0] / "predictions.parquet") if row["transform"] == "clean"]
    readable = [row for row in rows if not row["error"]]
    margins = np.array([row["logits"][1] - row["logits"][0] for row in readable])
    is_ai = np.array([row["label"] == "ai" for row in readable])
    above = (margins[is_ai][:, None] > margins[~is_ai]).mean() + (
        margins[is_ai][:, None] == margins[~is_ai]
    ).mean() / 2
    single = rows_of(report, "baselines")["global view alone"]
    assert single.values["auroc"].value == pytest.approx(above, abs=1e-6)
    both = rows_of(report, "overall")["all pictures"]
    gap = rows_of(report, "differences")["this model minus global view alone"].values["auroc"]
    assert gap.value == pytest.approx(both.values["auroc"].value - single.values["auroc"].value, abs=2e-6)
    assert gap.low <= gap.value <= gap.high


def test_the_report_is_made_again_from_its_predictions_alone(app, done, tmp_path):
    out, _, _ = done
    code, _ = run(
        app, "--predictions", out / "predictions.parquet", "--out", tmp_path, "--rounds", 60,
        "--views", "global",
    )  # fmt: skip
    assert code == 3
    for name in ("report.json", "report.md", "report.html", "tables/overall.csv", "plots/roc.png"):
        assert (tmp_path / name).read_bytes() == (out / name).read_bytes(), name


def test_a_killed_run_goes_on_and_counts_every_picture_once(app, tree, model, done, tmp_path, monkeypatch):
    monkeypatch.setattr("detector.evaluation.scores.PART_ROWS", 5)
    scored = 0
    original = Detector.__init__

    class Killed(Exception):
        pass

    def counting(self, *arguments, **options):
        original(self, *arguments, **options)
        real = self.runtime.score_views

        def score_views(views):
            nonlocal scored
            scored += len(views)
            if limit is not None and scored > limit:
                raise Killed
            return real(views)

        self.runtime.score_views = score_views

    monkeypatch.setattr(Detector, "__init__", counting)
    arguments = (tree, "--model", model, "--out", tmp_path, "--rounds", 60, "--batch-size", 4)
    limit: int | None = 60
    with pytest.raises(Killed):
        run(app, *arguments, "--transform", "clean")
    parts = list((tmp_path / "parts").glob("*.parquet"))
    assert parts and not (tmp_path / "predictions.parquet").exists()
    before, scored, limit = scored, 0, None
    code, _ = run(app, *arguments, "--transform", "clean", "--transform", "jpeg-50")
    assert code == 3
    assert before + scored < 2 * 2 * 47 + 2 * 10, "little is scored twice"
    first, again = (
        [row for row in read_predictions(folder / "predictions.parquet") if row["transform"] != "resize-0.25"]
        for folder in (done[0], tmp_path)
    )
    assert [(row["key"], row["transform"], row["error"]) for row in first] == [
        (row["key"], row["transform"], row["error"]) for row in again
    ]
    known = [place for place, row in enumerate(first) if not row["error"]]
    assert np.allclose([first[p]["margin"] for p in known], [again[p]["margin"] for p in known], atol=1e-5)
    scored = 0
    run(app, *arguments, "--transform", "clean", "--limit-per-source", 2)
    assert scored == 0, "a smaller limit takes from what is there"
    assert len(read_predictions(tmp_path / "predictions.parquet")) == 2 * 8


def test_scores_of_different_models_do_not_mix(app, tree, done, tmp_path):
    other = make_model(tmp_path, "other", temperature=2.0)
    with pytest.raises(EvaluationError, match="holds scores of another model or of other pictures"):
        run(app, tree, "--model", other, "--out", done[0])


def test_a_baseline_is_another_file_or_another_model(app, tree, model, done, tmp_path):
    other = make_model(tmp_path, "dark", sign=-1.0)
    code, _ = run(
        app, tree, "--model", model, "--out", tmp_path / "out", "--rounds", 60, "--transform", "clean",
        "--baseline", f"dark={other}", "--baseline", f"same={done[0] / 'predictions.parquet'}",
    )  # fmt: skip
    assert code == 3
    made = Report.model_validate_json((tmp_path / "out" / "report.json").read_text("utf-8"))
    mine = rows_of(made, "overall")["all pictures"].values["auroc"].value
    rows = rows_of(made, "baselines")
    assert rows["dark"].values["auroc"].value == pytest.approx(1 - mine, abs=1e-6)
    gaps = rows_of(made, "differences")
    assert gaps["this model minus dark"].values["auroc"].value == pytest.approx(2 * mine - 1, abs=1e-5)
    none = gaps["this model minus same"].values["auroc"]
    assert (none.value, none.low) == (0, None), "the same detector is drawn in the same way"
    assert none.no_interval.startswith("every resample gives the same value")


PIPELINE_ROWS = [
    {
        "key": f"{label}-{number}",
        "source": f"s{label}{number % 3}",
        "generator": "ab"[number % 2],
        "domain": "scene",
    }
    | {"label": label, "tier": tier, "margin": 2.0 * label - 1 + number % 4, "gates": [1.0], "error": None}
    | {"probe_margin": 4.0 * label - 2 + number % 3}
    for tier in ("clean", "hard")
    for label in (0, 1)
    for number in range(30)
]


@pytest.fixture
def pipeline_file(tmp_path) -> Path:
    write_predictions(PIPELINE_ROWS, tmp_path / "predictions-devtest.parquet")
    return tmp_path / "predictions-devtest.parquet"


def test_predictions_of_the_training_pipeline_bring_the_probe_as_a_baseline(pipeline_file, model):
    from detector.card import read_card

    card = read_card(model.with_suffix(".json"))
    bare = evaluate_predictions(pipeline_file, Settings(plan=PLAN)).report
    overall = rows_of(bare, "overall")["all pictures"].values
    assert overall["auroc"].value is not None
    assert overall["ece"].undefined == "no calibrated probabilities"
    assert overall["flagged_ai"].undefined == "no thresholds, so no verdicts"
    assert {gap.table: gap.why for gap in bare.missing}["flips"] == "no thresholds, so no verdicts"
    whole = evaluate_predictions(
        pipeline_file, Settings(plan=PLAN, calibration=pipeline_file), card=card
    ).report
    assert rows_of(whole, "overall")["all pictures"].values["ece"].value is not None
    probe = rows_of(whole, "baselines")[PROBE]
    assert probe.values["brier"].value is not None and "probe_margin" in probe.facts["note"]
    assert whole.transforms == ("clean", "hard")


@pytest.mark.parametrize("router", [{}, {"mode": "early", "tap": 2}])
def test_the_training_pipeline_predicts_what_the_model_says(tmp_path, router):
    import torch

    from detector.evaluate import predict
    from detector.features import build_evaluation_cache
    from detector.model import RouterConfig, build_model
    from detector.preprocess import Preprocessing, make_views
    from detector.probe import Probe
    from detector.samples import PictureStore, choose, list_samples
    from detector.vit import ExpertConfig
    from mirage.decode import decode
    from tests.detector.tiny import SIZE, tiny_backbone, tiny_config

    drawn = WrittenSet(tmp_path / "set")
    for label in ("real", "ai"):
        row = drawn.keep("devtest", label, f"{label}-source", "painter")
    drawn.store(row, b"no picture")
    drawn.write()
    config = tiny_config(experts=ExpertConfig(rank=2, blocks=(3,)))
    config = config.model_copy(update={"router": RouterConfig(hidden=8, **router)})
    model = build_model(config, backbone=tiny_backbone()).eval()
    width = model.trunk.feature_width
    probe = Probe(np.zeros(width), np.ones(width), np.full(width, 0.1), 0.5, 1.0)
    rows = choose(list_samples(tmp_path / "set"), "devtest", 9)
    store = PictureStore(tmp_path / "set", sorted({row.shard for row in rows}))
    views = Preprocessing(size_px=SIZE)
    jobs = [(row, "web") for row in rows]
    cache = build_evaluation_cache(model, jobs, store, tmp_path / "features", views)
    made = predict(model, probe, jobs, cache)
    readable = next(row for row in made if row["error"] is None)
    assert sorted(row["error"] is None for row in made) == [False, True]
    image = TRANSFORMS["web"](decode(store.read(next(r for r in rows if r.key == readable["key"]))).image)
    with torch.no_grad():
        pixels = torch.from_numpy(make_views(image, views))
        output = model(pixels)
        frozen = model.trunk.finish(model.trunk.shared(pixels), None).numpy()
    margins = (output.logits[:, 1] - output.logits[:, 0]).numpy()
    # The cache holds tokens in half precision, and what the probe and the router read in full.
    assert readable["margin"] == pytest.approx(margins.mean(), abs=1e-3)
    assert readable["gates"] == pytest.approx(output.gates.mean(dim=0).tolist(), abs=1e-3)
    assert readable["probe_margin"] == pytest.approx(probe.margins(frozen).mean(), abs=1e-5)


def test_a_predictions_file_of_another_program_needs_little(tmp_path):
    rows = [
        {
            "key": str(n),
            "source": "s",
            "generator": "g",
            "label": "ai" if n % 2 else "real",
            "probability": n / 50,
        }
        for n in range(50)
    ]
    write_predictions(rows, tmp_path / "theirs.parquet")
    made = evaluate_predictions(tmp_path / "theirs.parquet", Settings(plan=PLAN)).report
    values = rows_of(made, "overall")["all pictures"].values
    assert values["brier"].value is not None and values["auroc"].no_interval
    assert values["auroc"].no_interval == "the one real source and the one AI source cannot be resampled"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda rows: [{k: v for k, v in row.items() if k != "source"} for row in rows],
            "has no column 'source'",
        ),
        (lambda rows: [{**row, "label": 2} for row in rows], "has label '2'; real, ai, 0 and 1 are allowed"),
        (lambda rows: [*rows, rows[0]], "holds picture 0-0 under clean twice"),
        (lambda rows: [{**rows[0], "margin": None}, *rows[1:]], "picture 0-0 has no score and no error"),
        (lambda rows: [{**row, "error": "cut short"} for row in rows], "holds no picture that could be read"),
    ],
)
def test_predictions_that_cannot_be_used_are_one_sentence(tmp_path, change, reason):
    write_predictions(change(PIPELINE_ROWS), tmp_path / "p.parquet")
    with pytest.raises(EvaluationError, match=reason) as caught:
        evaluate_predictions(tmp_path / "p.parquet", Settings(plan=PLAN))
    assert "\n" not in str(caught.value)


def test_a_baseline_must_share_pictures_and_labels(pipeline_file, tmp_path):
    for name, change in {
        "shares no picture": lambda row: {**row, "key": "x" + row["key"]},
        "labels picture 0-0 differently": lambda row: {**row, "label": 1 - row["label"]},
    }.items():
        write_predictions([change(row) for row in PIPELINE_ROWS], tmp_path / "b.parquet")
        with pytest.raises(EvaluationError, match=f"baseline theirs {name}"):
            evaluate_predictions(
                pipeline_file, Settings(plan=PLAN), baselines={"theirs": tmp_path / "b.parquet"}
            )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "give either a folder of pictures or --predictions"),
        (["x", "--predictions", "y"], "give either a folder of pictures or --predictions"),
        (["--predictions", "none.parquet"], "^predictions none.parquet do not exist$"),
        (["none"], "^none is not a folder of pictures$"),
        (
            ["--predictions", "x", "--baseline", "a=b.onnx"],
            "^baseline a is a model; with --predictions nothing",
        ),
        (
            ["--predictions", "x", "--trained-on", "none.txt"],
            "^--trained-on none.txt cannot be read as text$",
        ),
    ],
)
def test_what_a_person_got_wrong_is_one_sentence(app, tmp_path, monkeypatch, arguments, reason):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DetectorError, match=reason):
        run(app, *arguments)


def test_a_file_that_is_no_parquet_is_said(tmp_path):
    (tmp_path / "p.parquet").write_text("no")
    with pytest.raises(EvaluationError, match="is not a Parquet file of predictions"):
        evaluate_predictions(tmp_path / "p.parquet", Settings())


def test_transforms_and_baselines_on_the_command_line():
    assert choose_transforms([], False) == ["clean", "web", "hard"]
    assert choose_transforms([], True) == list(TRANSFORMS)
    assert choose_transforms(["hard", "hard", "clean"], False) == ["hard", "clean"]
    for arguments, reason in ((["fog"], "'fog' does not exist"), (["hard"], "--robustness already takes")):
        with pytest.raises(DetectorError, match=reason):
            choose_transforms(arguments, arguments == ["hard"])
    assert split_baselines(["a=b=c"]) == {"a": Path("b=c")}
    for given in (["a"], ["=b"], ["a="], ["../a=b"], [".a=b"], ["a=b", "a=c"]):
        with pytest.raises(DetectorError, match="--baseline"):
            split_baselines(given)


def test_the_spec_s_robustness_list_is_covered():
    wanted = [f"jpeg-{q}" for q in (95, 90, 70, 50, 30)] + ["webp-80", "webp-50", "resize-0.5", "resize-0.25"]
    wanted += ["blur-0.5", "blur-1", "blur-2", "noise-0.02", "noise-0.05", "noise-0.1", "crop-0.8"]
    wanted += ["screenshot", "double-jpeg", "web", "hard"]
    assert set(wanted) <= set(choose_transforms([], True))


def test_csv_holds_every_measure_with_its_interval_or_the_reason(done, report):
    for table in report.tables:
        rows = list(csv.DictReader((done[0] / "tables" / f"{table.name}.csv").open(encoding="utf-8")))
        assert len(rows) == len(table.rows)
        for line, row in zip(rows, table.rows, strict=True):
            for name in table.measures:
                one = row.values[name]
                assert line[name] == ("" if one.value is None else str(one.value))
                assert one.value is not None or one.undefined in line[f"{name}_remark"]
                assert (one.value is None) == bool(one.undefined)
                assert (one.low is None) == bool(one.undefined or one.no_interval)


def test_nothing_is_nan_anywhere(done):
    text = (done[0] / "report.json").read_text("utf-8")
    assert "NaN" not in text and "Infinity" not in text
    assert "nan" not in (done[0] / "report.md").read_text("utf-8")


def test_plots_are_pictures_and_show_both_classes_colours(done):
    for name in ("roc", "reliability", "scores", "robustness", "generators", "real_sources"):
        with Image.open(done[0] / "plots" / f"{name}.png") as plot:
            pixels = np.asarray(plot.convert("RGB")).reshape(-1, 3)
            assert plot.width > 400
        for colour in (
            ((0, 0x72, 0xB2), (0xD5, 0x5E, 0)) if name in ("reliability", "scores", "real_sources") else ()
        ):
            assert (np.abs(pixels.astype(int) - colour).max(axis=1) < 8).any(), name


def test_names_from_strangers_stay_text(pipeline_file, tmp_path):
    hostile = "<img src=x onerror=alert(1)>|$a$"
    rows = [{**row, "generator": hostile, "domain": hostile} for row in PIPELINE_ROWS]
    write_predictions(rows, tmp_path / "h.parquet")
    write_report(evaluate_predictions(tmp_path / "h.parquet", Settings(plan=PLAN)), tmp_path / "out")
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "<img src=x" not in page and "&lt;img src=x onerror=alert(1)&gt;|$a$" in page
    assert r"\<img src=x onerror=alert(1)\>\|\$a\$" in (tmp_path / "out" / "report.md").read_text("utf-8")


def test_a_later_report_leaves_no_older_tables_behind(pipeline_file, done, tmp_path):
    write_report(evaluate_predictions(done[0] / "predictions.parquet", Settings(plan=PLAN)), tmp_path)
    assert (tmp_path / "tables" / "subsets.csv").exists()
    write_report(evaluate_predictions(pipeline_file, Settings(plan=PLAN)), tmp_path)
    assert not (tmp_path / "tables" / "subsets.csv").exists()
    assert not (tmp_path / "plots" / "reliability.png").exists()


def test_a_built_data_set_is_evaluated_with_what_its_manifest_says(app, model, tmp_path):
    drawn = WrittenSet(tmp_path / "set")
    for number in range(4):
        drawn.keep("devtest", "real", f"photos-{number % 2}", "camera", domain="scene")
        facts = {"family": "Painters", "released": "2024-01-01", "domain": "mixed"}
        drawn.keep("devtest", "ai", f"paintings-{number % 2}", "Painter 1", "webp", **facts)
    drawn.keep("train", "ai", "more", "Painter 2")
    drawn.write()
    code, output = run(
        app, tmp_path / "set", "--model", model, "--out", tmp_path / "out", "--transform", "clean",
        "--rounds", 20, "--limit-per-source", 1,
    )  # fmt: skip
    assert code == 0 and "set: layout mirage, split devtest, 4 pictures" in output
    rows = read_predictions(tmp_path / "out" / "predictions.parquet")
    assert {row["key"] for row in rows} == {row["key"] for row in rows if row["error"] is None}
    painting = next(row for row in rows if row["label"] == "ai")
    assert (painting["family"], painting["released"], painting["format"]) == (
        "Painters",
        "2024-01-01",
        "WEBP",
    )
    made = Report.model_validate_json((tmp_path / "out" / "report.json").read_text("utf-8"))
    assert rows_of(made, "families")["Painters"].facts["generators"] == "Painter 1"
    assert {gap.table for gap in made.missing} == {"held_out_generators", "subsets", "flips"}
    with pytest.raises(EvaluationError, match="has no split 'test'; it has: devtest, train"):
        run(app, tmp_path / "set", "--model", model, "--split", "test", "--out", tmp_path / "other")


def test_the_origin_travels_with_the_predictions(done, model):
    schema = pyarrow.parquet.read_schema(done[0] / "predictions.parquet")
    origin = Origin.model_validate_json(schema.metadata[b"omniaid"])
    assert origin.model.name == "bright" and origin.views == ("global", "native")
    assert (origin.threshold_ai, origin.bias, origin.trained_on) == (0.7, 0.25, ("Painter 1",))


def test_a_transform_that_fails_on_one_picture_is_an_error_row(app, model, tmp_path):
    for kind in ("real", "fake"):
        (tmp_path / "set" / kind).mkdir(parents=True)
        (tmp_path / "set" / kind / "1.png").write_bytes(paint(1, 120))
    Image.new("L", (16_400, 200)).save(tmp_path / "set" / "fake" / "wide.png")
    code, _ = run(
        app, tmp_path / "set", "--model", model, "--out", tmp_path / "out", "--rounds", 5,
        "--transform", "clean", "--transform", "webp-80",
    )  # fmt: skip
    rows = read_predictions(tmp_path / "out" / "predictions.parquet")
    failed = [(row["key"], row["transform"]) for row in rows if row["error"]]
    assert (code, failed) == (3, [("fake/wide.png", "webp-80")])
    assert next(row["error"] for row in rows if row["error"]).startswith("transform webp-80 failed: ")


def test_evaluating_needs_no_torch(tree, model, tmp_path):
    script = (
        "import sys, typer\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('torch', 'torchvision', 'timm', 'open_clip', 'transformers'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from detector.evaluation_commands import register\n"
        "app = typer.Typer(); app.command('other')(lambda: None); register(app); app()\n"
    )
    arguments = ["eval", tree, "--model", model, "--out", tmp_path, "--transform", "clean", "--rounds", "5"]
    command = [sys.executable, "-c", script, *map(str, arguments)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 3, finished.stderr


def test_help_documents_the_exit_codes_and_every_option(app):
    text = CliRunner().invoke(app, ["eval", "--help"], env={"COLUMNS": "120"}).output
    for word in (
        *("Exit codes", "--out", "--predictions", "--model", "--layout", "--split", "--limit-per-source"),
        *(
            "--transform",
            "--robustness",
            "--baseline",
            "--views",
            "--calibration",
            "--trained-on",
            "--rounds",
        ),
    ):
        assert word in text
