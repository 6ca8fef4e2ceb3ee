"""Our GPT-2 is Hugging Face's `GPT2LMHeadModel`."""

from __future__ import annotations

import pytest
import torch
from small_models import GPT2_TINY, small, some_tokens

from srmlab.models import GPT2, GPT2Config, build, preset

transformers = pytest.importorskip("transformers")


def theirs(**changes):
    torch.manual_seed(0)
    config = transformers.GPT2Config(**changes)
    return transformers.GPT2LMHeadModel(config).eval()


SMALL_CONFIG = {"vocab_size": 50, "n_positions": 20, "n_embd": 12, "n_layer": 3, "n_head": 3}
OUR_CONFIG = GPT2Config(vocab_size=50, context=20, dim=12, blocks=3, heads=3, mlp_dim=48)


def shaken(model):
    """Biases and norms away from where they start, so that none can be left out unnoticed."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def test_a_small_model_gives_hugging_faces_logits_and_gradients():
    reference = shaken(theirs(**SMALL_CONFIG))
    model = build(OUR_CONFIG).eval()
    model.load_huggingface(reference.state_dict())
    tokens = some_tokens(3, 20, vocab=50)
    logits = model(tokens)
    torch.testing.assert_close(logits, reference(tokens).logits, rtol=0, atol=1e-5)

    reference(tokens, labels=tokens).loss.backward()
    model(tokens[:, :-1], tokens[:, 1:]).backward()
    expected = reference.transformer.h[1].mlp.c_fc.weight.grad.T
    torch.testing.assert_close(model.blocks[1].mlp_up.weight.grad, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        model.embedding.weight.grad, reference.transformer.wte.weight.grad, rtol=1e-4, atol=1e-6
    )


def test_weights_of_the_transformer_alone_are_taken_too():
    reference = theirs(**SMALL_CONFIG)
    model = build(OUR_CONFIG).eval()
    model.load_huggingface(reference.transformer.state_dict())
    tokens = some_tokens(1, 9, vocab=50)
    torch.testing.assert_close(model(tokens), reference(tokens).logits, rtol=0, atol=1e-5)


def test_an_untied_head_is_taken():
    reference = shaken(theirs(**SMALL_CONFIG, tie_word_embeddings=False))
    model = build(OUR_CONFIG.replace(tied=False)).eval()
    model.load_huggingface(reference.state_dict())
    tokens = some_tokens(1, 9, vocab=50)
    torch.testing.assert_close(model(tokens), reference(tokens).logits, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_the_default_model_gives_hugging_faces_logits():
    reference = theirs()
    model = build(preset("gpt2")).eval()
    model.load_huggingface(reference.state_dict())
    assert model.num_parameters() == sum(p.numel() for p in reference.parameters())
    tokens = some_tokens(1, 48, vocab=50257)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens), reference(tokens).logits, rtol=0, atol=1e-5)


def test_weights_that_are_not_gpt2s_are_refused():
    with pytest.raises(ValueError, match=r"'encoder\.weight' is not a weight of GPT2LMHeadModel"):
        build(OUR_CONFIG).load_huggingface({"encoder.weight": torch.zeros(1)})


def test_dropout_acts_in_training_only():
    model = GPT2(GPT2_TINY.replace(dropout=0.5)).double()
    tokens = some_tokens()
    assert not torch.equal(model.train()(tokens), model(tokens))
    assert torch.equal(model.eval()(tokens), model(tokens))
    assert torch.equal(model(tokens), small(GPT2_TINY)(tokens))


def test_weights_start_as_gpt2s_do():
    model = build(preset("gpt2-nano"))
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.blocks[0].mlp_up.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert model.blocks[0].mlp_down.weight.std().item() == pytest.approx(0.02 / 12**0.5, rel=0.02)
    assert not model.blocks[0].mlp_up.bias.any()
    assert (model.norm.weight == 1).all()
