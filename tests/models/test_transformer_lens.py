"""TransformerLens' verbs, on every architecture."""

from __future__ import annotations

import pytest
import torch
from small_models import ONE_OF_EACH, SMALL, SRM_TINY, VOCAB, small, some_tokens

import srmlab
from srmlab.errors import UserError
from srmlab.models import gradient_everywhere
from srmlab.models.sites import HookPoint

TOKENS = some_tokens(3, 6)
# what its calls add is all there is; the others norm or mix their state in between
ADDING = [name for name in ONE_OF_EACH if name not in ("ouro", "hyper")]
each = pytest.mark.parametrize("name", ONE_OF_EACH)


@each
def test_the_loss_of_tokens_is_that_of_their_targets(name):
    model = small(ONE_OF_EACH[name])
    logits, loss = model(TOKENS, return_type="both")
    assert torch.equal(logits, model(TOKENS))
    torch.testing.assert_close(loss, model(TOKENS[:, :-1], TOKENS[:, 1:]))
    torch.testing.assert_close(model(TOKENS, return_type="loss"), loss)
    per_token = model(TOKENS, return_type="loss", loss_per_token=True)
    assert per_token.shape == (3, 5)
    torch.testing.assert_close(per_token.mean(), loss)
    assert torch.equal(model(TOKENS, return_type="logits"), logits)


def test_the_loss_of_padded_tokens_counts_real_ones_predicted_by_real_ones():
    model = small(SRM_TINY)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1]] * 3)
    alone = model(TOKENS[:, 2:], return_type="loss")
    torch.testing.assert_close(model(TOKENS, attention_mask=mask, return_type="loss"), alone)


@each
def test_verbs_take_the_options_of_a_pass(name):
    model = small(ONE_OF_EACH[name])
    site = model.points[0].sites[0]
    loss, cache = model.run_with_cache(TOKENS, site, return_type="loss")
    assert loss.ndim == 0
    assert list(cache) == [site]
    hooked = model.run_with_hooks(TOKENS, [(site, lambda value, _: value * 0)], return_type="loss")
    assert not torch.allclose(hooked, loss)


@each
def test_a_backward_hook_sees_and_replaces_the_gradient_of_the_value(name):
    model = small(ONE_OF_EACH[name])
    site, seen = model.points[-1].sites[-1], {}

    def look(gradient, hook):
        seen[hook.name] = gradient.clone()
        return gradient * 0

    loss, cache = model.run_with_cache(TOKENS, site, detach=False, return_type="loss")
    (expected,) = torch.autograd.grad(loss, cache[site])
    model.run_with_hooks(TOKENS, bwd_hooks=[(site, look)], return_type="loss").backward()
    torch.testing.assert_close(seen[site], expected)
    below = [p for n, p in model.named_parameters() if "attn_out" in n or "layer.steps.2.mlp_down" in n]
    assert all(p.grad is None or not p.grad.any() for p in below)  # nothing came through


@each
def test_added_hooks_stay_until_they_are_reset(name):
    model = small(ONE_OF_EACH[name])
    plain, site = model(TOKENS), model.points[0].sites[0]
    calls = []
    model.add_hook(site, lambda value, hook: calls.append(hook.name) or value * 2)
    changed = model(TOKENS)
    assert torch.equal(changed, model(TOKENS))
    assert calls == [site, site]
    assert not torch.allclose(changed, plain)
    model.add_hook(site, lambda _, hook: calls.append(f"gradient of {hook.name}"), dir="bwd")
    model.reset_hooks()
    assert torch.equal(model(TOKENS), plain)
    assert calls == [site, site]
    assert not model.listening


@each
def test_a_pass_stops_before_a_layer(name):
    model = small(ONE_OF_EACH[name])
    _, cache = model.run_with_cache(TOKENS)
    for level in range(1, model.depth + 1):
        called = []
        with model.hooks([(None, lambda _, hook, called=called: called.append(hook.name))]):
            state = model(TOKENS, stop_at_layer=level)
        point = model.points[level - 1]
        torch.testing.assert_close(state, model.state_at(point, cache))
        assert "logits" not in called
    torch.testing.assert_close(model(TOKENS, stop_at_layer=-1), model(TOKENS, stop_at_layer=model.depth - 1))
    start = model(TOKENS, stop_at_layer=0)
    assert torch.equal(start.flatten(2), cache[model.site_names[0]].flatten(2))


@each
def test_sizes_are_there_in_their_words(name):
    model = small(ONE_OF_EACH[name])
    assert model.hook_dict is model.sites
    assert (model.cfg.n_layers, model.cfg.d_vocab) == (model.depth, VOCAB)
    assert model(TOKENS, stop_at_layer=1).flatten(2).shape[-1] == model.cfg.d_model


def test_a_loss_is_computed_in_float32_whatever_the_weights_are_in():
    model = small(SRM_TINY).to(torch.bfloat16)
    loss = model(TOKENS, return_type="loss")
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, model(TOKENS[:, :-1], TOKENS[:, 1:]), rtol=1e-4, atol=0)


def test_one_token_has_no_loss():
    model = small(SRM_TINY)
    with pytest.raises(UserError, match="give two or more"):
        model(TOKENS[:, :1], return_type="loss")
    assert model(TOKENS[:, :1], return_type="loss", loss_per_token=True).shape == (len(TOKENS), 0)


def test_rows_of_one_token_behind_padding_have_no_loss():
    model, mask = small(SMALL["srm"]), torch.zeros_like(TOKENS)
    mask[:, -1] = 1
    with pytest.raises(UserError, match="give two or more"):
        model(TOKENS, attention_mask=mask, return_type="loss")


def test_ids_may_be_int32_whatever_is_asked_for():
    model, ids = small(SMALL["srm"]), TOKENS.int()
    assert torch.equal(model(ids, return_type="loss"), model(TOKENS, return_type="loss"))
    assert torch.equal(model(ids, ids), model(TOKENS, TOKENS))
    assert torch.equal(
        model.run_with_cache(ids, targets=ids)[0], model.run_with_cache(TOKENS, targets=TOKENS)[0]
    )
    gate = small(SMALL["ouro"].replace(trains="gate"))
    assert torch.equal(gate(ids, ids, progress=1.0)["loss"], gate(TOKENS, TOKENS, progress=1.0)["loss"])


def test_what_would_be_ignored_is_refused():
    model = srmlab.load("srm-nano")
    with pytest.raises(UserError, match='loss_per_token is for return_type="loss" or "both"'):
        model("My fellow citizens", loss_per_token=True)
    with pytest.raises(UserError, match="attention_mask goes with ids"):
        model(["My fellow", "My fellow citizens"], attention_mask=torch.ones(2, 7))


def test_a_hook_says_its_layer():
    assert HookPoint("layers.3.steps.1.out").layer() == 3
    with pytest.raises(UserError, match="not in a layer"):
        HookPoint("logits").layer()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"return_type": "los"}, "must be one of logits, loss, both"),
        ({"stop_at_layer": 9}, "stop_at_layer = 9: there are 3 layers"),
        ({"return_type": "loss", "targets": TOKENS}, "cannot be combined with return_type"),
        ({"return_type": "loss", "progress": 0.5}, "cannot be combined with return_type"),
        ({"return_type": "logits", "loss_per_token": True}, 'is for return_type="loss" or "both"'),
    ],
)
def test_what_cannot_be_asked_is_refused(options, complaint):
    with pytest.raises(UserError, match=complaint):
        small(SRM_TINY)(TOKENS, **options)


@each
def test_states_accumulate_over_depth(name):
    model = small(ONE_OF_EACH[name])
    _, cache = model.run_with_cache(TOKENS)
    states, labels = cache.accumulated_resid(return_labels=True)
    assert labels == [point.name for point in model.points]
    assert states.shape == (len(model.points), 3, 6, len(model.streams), model.stream_dim)
    torch.testing.assert_close(model.read_out(states[-1]) @ model.unembedding.T, model(TOKENS))


@pytest.mark.parametrize("name", [*ADDING, "srm from x", "srm with pre- and post-steps"])
def test_the_parts_of_a_state_add_up_to_it(name):
    model = small(SMALL[name])
    _, cache = model.run_with_cache(TOKENS)
    parts, labels = cache.decompose_resid(return_labels=True)
    assert [label for label in labels if label != "start"] == [call.site for call in model.calls]
    last = cache.accumulated_resid()[model.depth - 1]
    if labels.count("start") == 1:
        whole = parts.sum(0)
        torch.testing.assert_close(whole if whole.ndim == 4 else whole[:, :, None], last)
    else:  # a net each, whose calls follow its start
        groups = [call.group for call in model.calls]
        places = [i for i, label in enumerate(labels) if label != "start"]
        for stream, group in enumerate(dict.fromkeys(groups)):
            own = [place for place, which in zip(places, groups, strict=True) if which == group]
            torch.testing.assert_close(parts[[own[0] - 1, *own]].sum(0), last[:, :, stream])


def test_every_stream_of_hyper_connections_starts_from_the_embedding():
    model = small(SMALL["hyper"])
    tokens = TOKENS[:1, : len(model.streams)]  # as many as streams: one could be taken for the other
    _, cache = model.run_with_cache(tokens)
    parts, labels = cache.decompose_resid(return_labels=True)
    assert labels == ["start", *(call.site for call in model.calls)]
    for stream in range(len(model.streams)):
        torch.testing.assert_close(parts[0, :, :, stream], cache["input.embedding"])


def test_logits_are_sums_over_parts_where_the_output_is_linear():
    model = small(SRM_TINY)
    logits, cache = model.run_with_cache(TOKENS)
    found = cache.logit_attrs(cache.decompose_resid(), TOKENS)
    torch.testing.assert_close(found.sum(0), logits.gather(-1, TOKENS[..., None]).squeeze(-1))
    for other in ("gpt2", "srm with pre- and post-steps"):
        _, cache = small(SMALL[other]).run_with_cache(TOKENS)
        with pytest.raises(UserError, match="linear in the last state"):
            cache.logit_attrs(cache.decompose_resid(), 0)


def test_a_token_may_be_given_to_logit_attrs_as_argmax_gives_it():
    logits, cache = small(SRM_TINY).run_with_cache(TOKENS)
    parts, token = cache.decompose_resid(), logits[0, -1].argmax()
    assert torch.equal(cache.logit_attrs(parts, token), cache.logit_attrs(parts, int(token)))
    column = logits[0].argmax(-1)  # [T], the same for every row
    assert torch.equal(cache.logit_attrs(parts, column), cache.logit_attrs(parts, column.expand(3, -1)))


@pytest.mark.parametrize(
    ("tokens", "says"),
    [([1, 2], "give one id"), (-1, "token ids of -1 to -1"), (10**6, "this model's range is 0 to")],
)
def test_ids_that_logit_attrs_cannot_take_are_refused(tokens, says):
    _, cache = small(SRM_TINY).run_with_cache(TOKENS)
    with pytest.raises(UserError, match=says):
        cache.logit_attrs(cache.decompose_resid(), tokens)


def test_a_token_may_be_given_to_logit_attrs_as_text():
    model = srmlab.load("srm-nano")
    _, cache = model.run_with_cache("of the United")
    parts = cache.decompose_resid()
    by_id = cache.logit_attrs(parts, model.to_single_token(" States"))
    torch.testing.assert_close(cache.logit_attrs(parts, " States"), by_id)


def test_an_option_that_no_pass_has_is_refused_by_name():
    with pytest.raises(
        UserError, match="no option of a pass is called 'pos_slice'; there are attention_mask"
    ):
        small(SRM_TINY).run_with_cache(TOKENS, pos_slice=-1)
    with pytest.raises(UserError, match="did you mean 'attention_mask'"):
        small(SRM_TINY)(TOKENS, attn_mask=TOKENS)
    with pytest.raises(UserError, match="did you mean 'attention_mask'"):
        small(SRM_TINY)(TOKENS, attention_masks=None)
    with pytest.raises(UserError, match="did you mean 'names_filter'"):
        small(SRM_TINY).run_with_cache(TOKENS, name_filter="logits")
    with pytest.raises(UserError, match=r"stop_at_layer, targets$"):
        small(SRM_TINY)(TOKENS, labels=TOKENS)


def test_a_cache_stacks_sites_and_names_what_it_lacks():
    model = small(SRM_TINY)
    _, cache = model.run_with_cache(TOKENS, "layers.*.steps.1.attn")
    stacked = cache.stack_activation("layers.*.steps.1.attn")
    assert stacked.shape == (3, 3, 6, 3, 8)
    assert torch.equal(stacked[2], cache["layers.2.steps.1.attn"])
    with pytest.raises(UserError, match=r"the cache lacks layers\.0\.out"):
        cache.accumulated_resid()
    _, whole = model.run_with_cache(TOKENS)
    with pytest.raises(UserError, match="stack those of one shape"):
        whole.stack_activation(["layers.0.out", "layers.0.connection.pattern"])


def test_text_goes_in_and_comes_out_of_a_model_that_knows_its_tokenizer():
    model, tokenizer = srmlab.load("srm-nano"), srmlab.load_tokenizer("srm-nano")
    texts = ["My fellow citizens", "The Union"]
    tokens = model.to_tokens(texts)
    logits = model(tokens)
    for row, text in enumerate(texts):
        ids = tokenizer.encode(text)
        assert tokens[row, : len(ids)].tolist() == ids
        assert model.to_string(tokens[row, : len(ids)]) == text
        assert "".join(model.to_str_tokens(text)) == text == "".join(model.to_str_tokens(ids))
        alone = model(model.to_tokens(text))  # padding is on the right, where nobody looks
        torch.testing.assert_close(logits[row, len(ids) - 1], alone[0, -1], rtol=0, atol=1e-4)
    assert model.to_tokens("a", prepend_bos=True).tolist() == [
        [tokenizer.end_of_text, *tokenizer.encode("a")]
    ]
    assert model.to_string(model.to_tokens("a"))[0] == "a"
    assert model.to_str_tokens(texts) == [model.to_str_tokens(text) for text in texts]
    assert model.to_str_tokens(tokens)[0] == model.to_str_tokens(texts[0])


def test_a_model_without_a_tokenizer_says_how_to_give_it_one(tmp_path):
    built = srmlab.build(srmlab.preset("srm-nano"))
    with pytest.raises(UserError, match=r"model.tokenizer = srmlab.load_tokenizer\(PATH\)"):
        built.to_tokens("a")
    built.tokenizer = tokenizer = srmlab.load_tokenizer("srm-nano")
    assert built.to_tokens("The").tolist() == [tokenizer.encode("The")]
    with pytest.raises(UserError, match="a text is empty"):
        built.to_tokens(["The", ""])
    bare = srmlab.load(srmlab.save(built, tmp_path / "bare"))
    assert bare.tokenizer is None
    assert srmlab.load(srmlab.save(built, tmp_path / "whole", tokenizer)).tokenizer == tokenizer


def test_a_model_at_another_depth_reads_text_too():
    model = srmlab.load("srm-nano")
    assert torch.equal(model.at_depth(4)("My fellow"), model("My fellow", depth=4))
    assert model.at_depth(4).tokenizer == model.tokenizer


def test_every_verb_reads_text():
    model, texts = srmlab.load("srm-nano"), ["My fellow citizens", "The Union"]
    tokens = model.to_tokens(texts[0])
    assert torch.equal(model(texts[0]), model(tokens))
    assert torch.equal(
        model.run_with_cache(texts[0], "layers.3.out")[1]["layers.3.out"], model(tokens, stop_at_layer=4)
    )
    losses = [model(text, return_type="loss", loss_per_token=True) for text in texts]
    together = model(texts, return_type="loss")  # the padding of the shorter one does not count
    torch.testing.assert_close(together, torch.cat(losses, 1).mean(), rtol=0, atol=1e-5)
    with pytest.raises(UserError, match=r"not list: use tokenizer\(texts\)"):
        model(tokens.tolist())


def test_text_is_continued_with_text_and_tokens_with_tokens():
    model, tokenizer = srmlab.load("srm-nano"), srmlab.load_tokenizer("srm-nano")
    tokens = model.to_tokens("My fellow citizens")
    written = model.generate(tokens, 12, temperature=0)
    assert torch.equal(written, srmlab.generate(model, tokens, 12, temperature=0))
    text = model.generate("My fellow citizens", 12, temperature=0)
    assert text == tokenizer.decode(written[0].tolist())
    assert model.generate(["My fellow citizens", "The"], 12, temperature=0)[0] == text
    new = written[0, tokens.shape[1] :].tolist()
    stopped = model.generate("My fellow citizens", 12, temperature=0, stop_token=new[2])
    assert stopped == "My fellow citizens" + tokenizer.decode(new[: new.index(new[2]) + 1])
    with model.hooks([("layers.7.out", lambda z, _: z * -1)]):
        assert model.generate("My fellow citizens", 12, temperature=0) != text


def test_a_text_of_one_token_has_one_id():
    model = srmlab.load("srm-nano")
    assert model.to_string(model.to_single_token(" the")) == " the"
    with pytest.raises(UserError, match=r"' citizens' is 4 tokens, not 1: \[' c', 'it', 'iz', 'ens'\]"):
        model.to_single_token(" citizens")


def test_a_cache_of_one_text_loses_its_batch_axis_and_says_so():
    model = small(SRM_TINY)
    _, cache = model.run_with_cache(TOKENS[:1])
    _, bare = model.run_with_cache(TOKENS[:1], remove_batch_dim=True)
    assert all(torch.equal(bare[name], value[0]) for name, value in cache.items())
    assert cache.to("cpu") is cache
    assert repr(cache) == f"ActivationCache of {len(cache)} values: {', '.join(model.site_names[:3])} …"
    with pytest.raises(UserError, match="ask it before remove_batch_dim"):
        bare.accumulated_resid()
    with pytest.raises(UserError, match="for one text; here are 3"):
        model.run_with_cache(TOKENS, remove_batch_dim=True)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("layers.1.ou", r"did you mean 'layers\.1\.out'"),
        ("blocks.1.hook_resid_post", r"such as 'layers\.1\.out': model\.site_names lists them"),
        ("blocks.0.attn.hook_pattern", r"such as 'layers\.0\.steps\.0\.attention\.weights'"),
        (("resid_post", 1), r"such as 'layers\.1\.out'"),
        ("blocks.1.hook_scale", r"of their own here: model\.site_names lists them"),
    ],
)
def test_a_name_that_no_site_has_is_one_line_in_a_cache_too(name, hint):
    _, cache = small(SRM_TINY).run_with_cache(TOKENS)
    with pytest.raises(srmlab.UnknownSite, match=hint):
        cache[name]
    assert cache.get(name) is None


def test_a_backward_hook_that_would_never_be_called_is_refused():
    model, seen = small(SMALL["srm"]), []
    assert model.config.gradient_depth < model.depth
    every = [("layers.*.out", lambda _, hook: seen.append(hook.name))]
    with pytest.raises(UserError, match=r"at layers\.0\.out would never be called.*gradient_everywhere\(\)"):
        model.run_with_hooks(TOKENS, bwd_hooks=every)
    whole = model.at_depth(model.depth, model.depth)
    whole.run_with_hooks(TOKENS, bwd_hooks=every, return_type="loss").backward()
    assert seen == [f"layers.{layer}.out" for layer in reversed(range(model.depth))]
    with torch.no_grad(), pytest.raises(UserError, match=r"leave torch\.no_grad"):
        whole.run_with_hooks(TOKENS, bwd_hooks=every)


@pytest.mark.parametrize("name", SMALL)
def test_a_backward_hook_is_called_at_every_level_where_there_is_a_gradient_everywhere(name):
    model, seen = small(SMALL[name]), []
    every = [site for point in model.points for site in point.sites]
    with gradient_everywhere():
        hooks = [(every, lambda _, hook: seen.append(hook.name))]
        model.run_with_hooks(TOKENS, bwd_hooks=hooks, return_type="loss").backward()
    assert sorted(seen) == sorted(every)


def test_a_hook_that_returns_no_tensor_is_named():
    with pytest.raises(UserError, match=r"a hook at layers\.1\.out returned int; the site's value has shape"):
        small(SRM_TINY).run_with_hooks(TOKENS, [("layers.1.out", lambda _value, _hook: 3)])
