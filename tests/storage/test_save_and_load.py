"""`srmlab.save` and `srmlab.load`: exports, checkpoints and runs."""

import json

import pytest
import torch

import srmlab
from srmlab.cli.export import export_huggingface
from srmlab.data import byte_tokenizer
from srmlab.errors import UserError
from srmlab.storage import load_tokenizer, saved_tokenizer

SMALL = srmlab.SRMConfig(
    vocab_size=257, context=8, embedding_dim=8, streams=2, stream_dim=8, mlp_dim=8, token_heads=1, head_dim=4,
    stream_heads=1, depth=2, gradient_depth=1, init_seed=3,
)  # fmt: skip
CONFIGS = {
    "SRM": SMALL,
    "untied": SMALL.replace(tied=False, norm_affine=True),
    "GPT-2": srmlab.GPT2Config(vocab_size=20, context=8, dim=8, heads=2, blocks=1, mlp_dim=8),
    "TRM": srmlab.preset("trm-nano", vocab_size=20, dim=8, heads=2, head_dim=4, mlp_dim=8),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_saved_model_comes_back_the_same(name, tmp_path):
    model = srmlab.build(CONFIGS[name]).eval()
    with torch.no_grad():  # weights that the config alone does not give
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    srmlab.save(model, tmp_path / "export")
    loaded = srmlab.load(tmp_path / "export")
    assert loaded.config == model.config
    assert not loaded.training
    tokens = torch.arange(8)[None]
    assert torch.equal(loaded(tokens), model(tokens))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_in_float64_is_not_rounded(name, tmp_path):
    model = srmlab.build(CONFIGS[name]).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + 1e-12)
    srmlab.save(model, tmp_path / "export")
    tokens = torch.arange(8)[None]
    assert torch.equal(srmlab.load(tmp_path / "export")(tokens), model(tokens))


def test_the_tokenizer_comes_along(tmp_path):
    srmlab.save(srmlab.build(SMALL), tmp_path / "with", tokenizer=byte_tokenizer())
    srmlab.save(srmlab.build(SMALL), tmp_path / "without")
    tokenizer = load_tokenizer(tmp_path / "with")
    assert tokenizer is not None
    assert tokenizer.fingerprint == byte_tokenizer().fingerprint
    assert saved_tokenizer(tmp_path / "without") is None
    with pytest.raises(UserError, match="give the run or the export"):
        load_tokenizer(tmp_path / "without")


def test_an_export_for_hugging_face_comes_back_too(tmp_path):
    pytest.importorskip("transformers")
    model, tokenizer = srmlab.build(SMALL.replace(vocab_size=257)), byte_tokenizer()
    export_huggingface(model, tmp_path / "hf", tokenizer)
    again = srmlab.load(tmp_path / "hf")
    assert again.config == model.config
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    assert load_tokenizer(tmp_path / "hf") == tokenizer


def test_a_tokenizer_of_other_people_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"is a dict, not one of srmlab\.data"):
        srmlab.save(srmlab.build(SMALL), tmp_path / "export", {})
    assert not (tmp_path / "export").exists()


def test_nothing_is_overwritten(tmp_path):
    srmlab.save(srmlab.build(SMALL), tmp_path / "export")
    with pytest.raises(UserError, match="exists and is not overwritten"):
        srmlab.save(srmlab.build(SMALL), tmp_path / "export")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot write"):
        srmlab.save(srmlab.build(SMALL), tmp_path / "file/export")


def test_a_changed_bit_is_noticed_unless_one_does_not_want_to_know(tmp_path):
    srmlab.save(srmlab.build(SMALL), tmp_path / "export")
    path = tmp_path / "export/model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        srmlab.load(tmp_path / "export")
    srmlab.load(tmp_path / "export", verify=False)


def test_what_is_no_model_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        srmlab.load(tmp_path / "none")
    with pytest.raises(UserError, match=r'gpt2 is a preset.* srmlab\.build\(srmlab\.preset\("gpt2"\)\)'):
        srmlab.load("gpt2")
    with pytest.raises(UserError, match=r"neither run\.json nor config\.json"):
        srmlab.load(tmp_path)
    srmlab.save(srmlab.build(SMALL), tmp_path / "export")
    config = json.loads((tmp_path / "export/config.json").read_text())
    for change, message in (
        ({"model": config["model"] | {"streams": 4}}, "config.json does not belong to these weights"),
        ({"model": config["model"] | {"stream": 4}}, "stream: not a field of SRMConfig"),
        ({"format": 99}, "format 99, this version reads up to 1: upgrade"),
    ):
        (tmp_path / "export/config.json").write_text(json.dumps(config | change))
        with pytest.raises(UserError, match=message):
            srmlab.load(tmp_path / "export", verify=False)


def test_a_model_of_another_library_is_named(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 12}))
    with pytest.raises(UserError, match="is a gpt2 model of another library"):
        srmlab.load(tmp_path)
