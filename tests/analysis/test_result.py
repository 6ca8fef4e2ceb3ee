from __future__ import annotations

import json

import numpy as np
import pytest

import srmlab.analysis
from srmlab.analysis.result import ResultError, write_npz
from srmlab.analysis.routing import Routing


def test_a_saved_result_is_read_back_the_same(model, batches, tmp_path):
    found = srmlab.analysis.routing(model, batches)
    again = srmlab.analysis.load(found.save(tmp_path / "routing"))
    assert type(again) is Routing
    assert again.evidence == found.evidence
    assert (again.threshold, again.token_independent) == (found.threshold, found.token_independent)
    for name in found.axes():
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert set(again.errors) == {"frequency", "weight", *found.derived()}
    for name, error in found.errors.items():
        np.testing.assert_array_equal(again.errors[name], error)
    assert again.summary() == found.summary()


def test_the_saved_files_are_plain_npz_and_json_with_axes_and_units(model, batches, tmp_path):
    srmlab.analysis.routing(model, batches).save(tmp_path / "routing.npz")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["routing.json", "routing.npz"]
    document = json.loads((tmp_path / "routing.json").read_text())
    assert document["arrays"]["weight"] == {
        "axes": ["layer", "head", "target", "source"],
        "unit": "mean attention weight",
        "shape": [4, 2, 4, 4],
    }
    with np.load(tmp_path / "routing.npz", allow_pickle=False) as archive:
        fields = {name for name in archive.files if not name.startswith("error of ")}
        assert fields == {"frequency", "weight"}
        assert archive["error of weight"].shape == (4, 2, 4, 4)
        assert archive["error of hub_score"].shape == (4,)


def test_a_result_saved_in_the_format_before_keeps_its_standard_errors(model, batches, tmp_path):
    """Format 2 has the errors of fields beside them, as `weight_se`."""
    found = srmlab.analysis.routing(model, batches)
    found.save(tmp_path / "routing")
    document = json.loads((tmp_path / "routing.json").read_text())
    with np.load(tmp_path / "routing.npz", allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name in ("frequency", "weight"):
        arrays[f"{name}_se"] = arrays.pop(f"error of {name}")
    document |= {"format": 2, "npz": write_npz(tmp_path / "routing.npz", arrays)}
    (tmp_path / "routing.json").write_text(json.dumps(document))
    again = srmlab.analysis.load(tmp_path / "routing")
    for name in found.errors:
        np.testing.assert_array_equal(again.standard_error(name), found.standard_error(name))


def test_a_missing_result_names_the_command_that_makes_it(tmp_path):
    with pytest.raises(ResultError, match="srmlab analyze RUN"):
        srmlab.analysis.load(tmp_path / "routing")


def test_a_damaged_result_is_refused_in_one_line(model, batches, tmp_path):
    srmlab.analysis.routing(model, batches).save(tmp_path / "routing")
    (tmp_path / "routing.json").write_text("{}")
    with pytest.raises(ResultError, match="is not a saved result"):
        srmlab.analysis.load(tmp_path / "routing")


@pytest.mark.parametrize("where", [0.3, 0.5, 0.7])
def test_damaged_arrays_are_refused_in_one_line(model, batches, tmp_path, where):
    srmlab.analysis.routing(model, batches).save(tmp_path / "routing")
    content = bytearray((tmp_path / "routing.npz").read_bytes())
    content[int(where * len(content))] ^= 0xFF
    (tmp_path / "routing.npz").write_bytes(content)
    with pytest.raises(ResultError, match="run the analysis again"):
        srmlab.analysis.load(tmp_path / "routing")


def test_arrays_that_disagree_about_an_axis_are_refused(model, batches):
    found = srmlab.analysis.routing(model, batches)
    fields = {name: getattr(found, name) for name in found.axes()}
    errors = {"weight": found.standard_error("weight")[:2]}
    with pytest.raises(ResultError, match="error of weight has 2 entries along layer, other fields have 4"):
        Routing(evidence=found.evidence, errors=errors, threshold=0.1, token_independent=(0,), **fields)
