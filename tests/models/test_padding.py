"""Rows of unequal length in one masked pass: each gets what it gets alone, and every site is called once."""

from __future__ import annotations

import itertools

import pytest
import torch
from small_models import CONTEXT, ONE_OF_EACH, RECURRENT, SMALL, VOCAB, gradients, small, some_tokens
from torch import Tensor

from srmlab.errors import UserError
from srmlab.models import Exit, generate


def padded(batch: int, side: str = "left", longest: int = 9) -> tuple[list[Tensor], Tensor, Tensor]:
    """Texts of 1 to `longest` tokens, and the same as one batch with its mask."""
    generator = torch.Generator().manual_seed(batch)
    lengths = torch.randint(1, longest + 1, (batch,), generator=generator).tolist()
    texts = [some_tokens(1, length, seed=row) for row, length in enumerate(lengths)]
    tokens, mask = torch.zeros(batch, max(lengths), dtype=torch.long), torch.zeros(batch, max(lengths))
    for row, text in enumerate(texts):
        place = slice(-text.shape[1], None) if side == "left" else slice(text.shape[1])
        tokens[row, place], mask[row, place] = text[0], 1
    return texts, tokens, mask


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_every_row_has_the_logits_it_has_alone(name, side, dtype, allowed):
    model = small(SMALL[name], dtype)
    for batch in (1, 2, 5, 16):
        texts, tokens, mask = padded(batch, side)
        with torch.no_grad():
            logits = model(tokens, attention_mask=mask)
            assert logits.isfinite().all()
            for row, text in enumerate(texts):
                torch.testing.assert_close(logits[row, mask[row] == 1], model(text)[0], rtol=0, atol=allowed)


@pytest.mark.parametrize("name", SMALL)
def test_text_that_goes_on_from_a_padded_cache_has_the_logits_it_has_alone(name):
    model = small(SMALL[name])
    texts, tokens, mask = padded(6, longest=8)
    more = some_tokens(6, 5, seed=9)
    cache = model.new_cache()
    with torch.no_grad():
        model(tokens, cache=cache, attention_mask=mask)
        parts = [model(more[:, :2], cache=cache)]  # two at once, then one by one
        parts += [model(more[:, i : i + 1], cache=cache) for i in range(2, 4)]
        last = model.next_token_logits(more[:, 4:], cache)
        for row, text in enumerate(texts):
            alone = model(torch.cat((text, more[row : row + 1]), dim=1))[0, -5:]
            continued = torch.cat((*(part[row] for part in parts), last[row : row + 1]))
            torch.testing.assert_close(continued, alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_row_may_join_its_padding_to_a_cache_that_had_none(name):
    model = small(ONE_OF_EACH[name])
    cache = model.new_cache()
    tokens, more = some_tokens(2, 4), some_tokens(2, 3, seed=1)
    with torch.no_grad():
        model(tokens, cache=cache)
        logits = model(more, cache=cache, attention_mask=torch.tensor([[1, 1, 0], [1, 1, 1]]))
        alone = model(torch.cat((tokens, more), dim=1))
    torch.testing.assert_close(logits[0, :2], alone[0, 4:6], rtol=0, atol=1e-10)
    torch.testing.assert_close(logits[1], alone[1, 4:], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SMALL)
def test_every_site_is_called_once_and_in_order_whatever_the_padding(name):
    model = small(SMALL[name])
    _, tokens, mask = padded(5)
    called: list[str] = []
    with torch.no_grad(), model.hooks([(None, lambda _, hook: called.append(hook.name))]):
        model(tokens, attention_mask=mask)
    assert called == model.site_names


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_an_edit_reaches_every_row(name):
    model = small(ONE_OF_EACH[name])
    texts, tokens, mask = padded(7)
    site = model.points[1].sites[0]
    with torch.no_grad(), model.hooks([(site, lambda value, _: value * torch.arange(value.shape[-1]))]):
        logits = model(tokens, attention_mask=mask)
        for row, text in enumerate(texts):
            torch.testing.assert_close(logits[row, mask[row] == 1], model(text)[0], rtol=0, atol=1e-10)
    with torch.no_grad():
        assert not torch.allclose(logits, model(tokens, attention_mask=mask), atol=1e-3)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_gradient_of_a_padded_batch_is_that_of_its_rows(name):
    model = small(ONE_OF_EACH[name])
    texts, tokens, mask = padded(4)
    weights = torch.randn(VOCAB, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    together = gradients(model, (model(tokens, attention_mask=mask)[mask == 1] @ weights).sum())
    alone = gradients(model, sum((model(text) @ weights).sum() for text in texts))
    assert sum(gradient.abs().sum() > 0 for gradient in together.values()) > len(together) / 2
    for name_of in together:
        torch.testing.assert_close(together[name_of], alone[name_of], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_documents_and_padding_go_together(name):
    model = small(ONE_OF_EACH[name])
    text, documents = some_tokens(1, 6), torch.tensor([[0, 0, 0, 1, 1, 1]])
    tokens = torch.nn.functional.pad(text, (3, 0))
    mask = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        logits = model(tokens, documents=torch.nn.functional.pad(documents, (3, 0)), attention_mask=mask)
        torch.testing.assert_close(logits[:, 3:], model(text, documents=documents), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_mask_of_ones_changes_nothing_but_rounding(name):
    model, tokens = small(ONE_OF_EACH[name]), some_tokens(3, CONTEXT)
    with torch.no_grad():
        given = model(tokens, attention_mask=torch.ones_like(tokens))
        torch.testing.assert_close(given, model(tokens), rtol=0, atol=1e-12)


def test_a_mask_of_another_shape_is_refused():
    model = small(ONE_OF_EACH["srm"])
    with pytest.raises(UserError, match="attention_mask of shape"):
        model(some_tokens(2, 5), attention_mask=torch.ones(2, 4))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("use_cache", [True, False])
def test_every_row_is_continued_as_it_is_alone(name, use_cache):
    model = small(SMALL[name])
    texts, tokens, mask = padded(6)
    written = generate(model, tokens, 5, attention_mask=mask, temperature=0, use_cache=use_cache)
    for row, text in enumerate(texts):
        alone = generate(model, text, 5, temperature=0)
        assert torch.equal(written[row, -5:], alone[0, -5:])


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_padded_rows_slide_past_the_context(name):
    model = small(ONE_OF_EACH[name])
    texts, tokens, mask = padded(6)
    how = {"attention_mask": mask, "temperature": 0, "overflow": "slide"}
    written = generate(model, tokens, 3 * CONTEXT, **how)
    assert torch.equal(written, generate(model, tokens, 3 * CONTEXT, use_cache=False, **how))
    longest = max(texts, key=lambda text: text.shape[1])
    row = next(row for row, text in enumerate(texts) if text is longest)
    assert torch.equal(
        written[row], generate(model, longest, 3 * CONTEXT, temperature=0, overflow="slide")[0]
    )


@pytest.mark.parametrize("mask", [[[1, 1, 0]], [[1, 0, 1]], [[0, 0, 0]], [[1, 1]]], ids=str)
def test_padding_that_text_cannot_go_on_from_is_refused(mask):
    with pytest.raises(UserError, match=r"padded on the left|of shape \(1, 2\)"):
        generate(small(SMALL["srm"]), some_tokens(1, 3), 2, attention_mask=torch.tensor(mask))


@pytest.mark.parametrize("name", RECURRENT)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_has_no_say_in_early_exit(name, side):
    model = small(SMALL[name])
    stopped = set()
    for row, rule in itertools.product(range(4), model.exit_rules):
        text = some_tokens(1, 5, seed=row)
        width = (6, 0) if side == "left" else (0, 6)
        tokens, mask = (torch.nn.functional.pad(given, width) for given in (text, torch.ones_like(text)))
        for tolerance in (0.1, 0.3, 0.5, 0.7, 0.9, 2.0):
            alone, among = Exit(tolerance, rule), Exit(tolerance, rule)
            with torch.no_grad():
                expected = model(text, exit=alone)[0]
                found = model(tokens, attention_mask=mask, exit=among)[0, mask[0] == 1]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
            stopped.add(alone.mean_levels)
            assert among.mean_levels == alone.mean_levels
    assert len(stopped) > 1


@pytest.mark.parametrize("name", RECURRENT)
@torch.no_grad()
def test_columns_of_padding_alone_can_be_read_with_early_exit(name):
    model, text, padding = small(SMALL[name]), some_tokens(2, 3), torch.zeros(2, 2, dtype=torch.long)
    for rule in model.exit_rules:
        alone, among = model.new_cache(), model.new_cache()
        model(padding, attention_mask=padding, cache=among, exit=Exit(0.3, rule))
        mask = torch.ones_like(text)
        found = model(text, attention_mask=mask, cache=among, exit=Exit(0.3, rule))
        expected = model(text, cache=alone, exit=Exit(0.3, rule))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
