"""RFID-MoE as a whole: equal budgets, the folder it saves, and settings that cannot be met."""

import pytest

from moe_core.errors import ConfigError
from moe_core.methods.rfid_moe.method import SMOKE, SWEPT, run, variants
from moe_core.toys.corpus import sequences
from moe_core.toys.models import token_losses
from moe_core.transformers.storage import load


@pytest.mark.parametrize("stock", [False, True])
def test_the_saved_folder_is_the_measured_model(stock, tmp_path):
    config = SMOKE.model_copy(update={"compared": False, "save": tmp_path / "out", "materialise": stock})
    report = run(config)
    held_out = sequences("test", config.sequences, config.length, config.seed + 1)
    again = load(tmp_path / "out", attn_implementation="eager")
    assert type(again).__name__ == ("" if stock else "MoeCore") + "Qwen3MoeForCausalLM"
    assert float(token_losses(again, held_out).mean()) == pytest.approx(report.metrics["rfid_nats"], abs=1e-5)
    assert report.metrics["stored_share"] <= (2 * config.keep + 1) / 3


def test_no_rival_stores_more_than_the_budget_and_all_nearly_reach_it():
    report = run(SMOKE)
    table = report.tables["compressions"]
    assert len(table.rows) == len(variants(SMOKE)) >= 11
    allowed = (2 * SMOKE.keep + 1) / 3
    for name, stored, _, _ in table.rows:
        assert allowed - 0.02 < stored <= allowed, name


def test_everything_kept_adds_nothing():
    report = run(SMOKE.model_copy(update={"keep": 1.0, "compared": False}))
    assert report.metrics["rfid_nats"] == pytest.approx(report.metrics["whole_nats"], abs=1e-6)
    assert report.metrics["stored_share"] == 1


def test_settings_that_cannot_be_met_are_named(tmp_path):
    with pytest.raises(ConfigError, match="cannot be met; one rank for each costs"):
        run(SMOKE.model_copy(update={"keep": 0.01, "compared": False}))
    with pytest.raises(ConfigError, match="cannot be given to the toy"):
        run(SMOKE.model_copy(update={"calib": tmp_path / "a.txt"}))
    with pytest.raises(ConfigError, match="holds no causal language model"):
        run(SMOKE.model_copy(update={"model": str(tmp_path)}))


def test_other_budgets_are_held_too():
    table = run(SMOKE.model_copy(update={"also": (0.6,)})).tables["other budgets"]
    assert [row[1] for row in table.rows] == list(SWEPT)
    assert all((2 * 0.6 + 1) / 3 - 0.02 < stored <= (2 * 0.6 + 1) / 3 for _, _, stored, _ in table.rows)
