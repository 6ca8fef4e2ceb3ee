"""A session: one model, its tokenizer and its checkpoints, and the questions the explorer asks of them.

    >>> import srmlab
    >>> from srmlab.data.tokenizers import byte_tokenizer
    >>> model = srmlab.build(srmlab.preset("srm-nano", vocab_size=257))
    >>> session = Session(model, byte_tokenizer(), name="nano")
    >>> tokens = session.encode("To be")
    >>> session.trace(tokens).token_strings
    ['T', 'o', ' ', 'b', 'e']

A session is plain and single-threaded; `worker.py` makes sure one thread at a time asks it.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from srmlab import __version__
from srmlab.analysis.edge_attribution import edge_attribution
from srmlab.analysis.induction import Induction, induction
from srmlab.analysis.interventions import AblatedStream, Hook, Intervention
from srmlab.analysis.null import twins
from srmlab.analysis.registry import streams_of
from srmlab.analysis.replacement import By
from srmlab.analysis.states import StateMeans, state_means
from srmlab.dictionaries import Dictionary, Lexicon
from srmlab.dictionaries.page import page_of
from srmlab.dictionaries.switches import Switches
from srmlab.errors import UserError
from srmlab.explorer.attention import attention_calls, attention_weights
from srmlab.explorer.feature_cards import Note, Notes, card, find, histogram, in_use_over, str_of
from srmlab.explorer.outcomes import Baseline, evaluate
from srmlab.explorer.switch_cards import switch_card
from srmlab.explorer.trace import Trace, config_hash
from srmlab.explorer.tracing import (
    BoardTokens,
    TextTokens,
    capture,
    display_strings,
    heads_of,
    orders,
    reading_of,
)
from srmlab.models import Exit, LanguageModel, generate
from srmlab.storage.identity import model_mark

MAX_TOKENS = 512  # of a prompt; a model with a shorter context has its own limit
KEPT_BASELINES = 8
TWIN = "untrained"  # the name of the untrained twin among the checkpoints
BARS = 8  # likeliest tokens shown before and after


class TooLong(UserError):
    """A prompt of more tokens than are shown."""

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(f"the prompt has {count} tokens, at most {limit} are shown: shorten it")
        self.limit = limit


@dataclass(frozen=True)
class Subject:
    """One set of weights: the model as trained, or one of its checkpoints."""

    model: LanguageModel
    reference: StateMeans | None = None  # over evaluation tokens
    lexicon: Lexicon | None = None

    @property
    def dictionary(self) -> Dictionary | None:
        return None if self.lexicon is None else self.lexicon.dictionary


@dataclass
class Session:
    model: LanguageModel
    tokenizer: TextTokens
    name: str = "SRM"
    reference: StateMeans | None = None
    lexicon: Lexicon | None = None  # of the model's own weights
    checkpoints: Mapping[str, Callable[[], LanguageModel]] = field(
        default_factory=dict
    )  # by name; each loads when asked for
    notes: Notes = field(default_factory=Notes)  # on the dictionary's features
    evaluation: Sequence[Tensor] = ()  # text of the run, or boards, [B, T] each
    runs: Sequence[str] = ()  # the names of those that are served beside it, itself among them
    twin: bool = False  # whether there is a reason to look at an untrained one beside it
    saved: dict[str, Any] = field(default_factory=dict)  # results of the run's analyses, as plain data
    switches: Switches | None = None  # why its edges open
    python: str = "model, tokenizer = ..."  # the lines that make both, for the page's "Python"
    prompts: Sequence[str] = ("The stream recursion model reads, and the streams begin to talk.",)

    def __post_init__(self) -> None:
        model = self.model.eval()
        if self.tokenizer.vocab_size > model.config.vocab_size:
            raise UserError(
                f"the tokenizer has {self.tokenizer.vocab_size} ids, the model "
                f"{model.config.vocab_size}: they do not belong together"
            )
        self._subjects: OrderedDict[str, Subject] = OrderedDict(
            {"": Subject(model, self.reference, self.lexicon)}
        )
        self._used: tuple[np.ndarray, np.ndarray] | None = None  # features over the evaluation text
        self._induction: dict[str, Induction] = {}  # by checkpoint
        self._baselines: OrderedDict[tuple[str, tuple[int, ...]], Baseline] = OrderedDict()

    # what there is

    @property
    def max_tokens(self) -> int:
        context = self.model.config.context
        return min(context, MAX_TOKENS) if self.model.config.causal else context  # a board is read whole

    @cached_property
    def mark(self) -> str:
        """Changes with the weights and what is beside them: a page that shows another model finds out."""
        known = "\n".join((__version__, self.name, self.python, model_mark(self.model)))
        return hashlib.blake2b(known.encode(), digest_size=8).hexdigest()

    def info(self) -> dict[str, Any]:
        config, order = self.model.config, orders(self.model)
        return {
            "name": self.name,
            "mark": self.mark,
            "config": config.to_dict(),
            "config_hash": config_hash(config),
            "parameters": self.model.num_parameters(),
            "shape": self.shape(),
            "streams": len(self.model.streams),
            "layers": self.model.depth,
            "heads": heads_of(self.model),
            "steps": len(order[0]),
            "order": order,
            "drawing": config.drawing,
            "tokenizer": getattr(self.tokenizer, "name", "custom"),
            "max_tokens": self.max_tokens,
            "checkpoints": list(self.checkpoints),
            "twin": self.twin,
            "runs": list(self.runs),
            "prompts": list(self.prompts),
            "results": list(self.saved),
            "switches": [] if self.switches is None else list(self.switches.edges),
            "dictionary": "" if self.lexicon is None else self.lexicon.features.headline(),
            "python": self.python,
            "generates": self.model.config.causal,
            "exits": self._exits(),
            "level_name": self.model.level_name,
            "attention": [asdict(call) for call in attention_calls(self.model)],
            "induction": self._measures_induction,
        }

    @property
    def _measures_induction(self) -> bool:
        return bool(self.evaluation) and self.model.config.causal

    def _exits(self) -> bool:
        """Whether the model can stop where its state has settled."""
        try:
            self.model.check_exit()
        except UserError:
            return False
        return True

    def shape(self) -> list[str]:
        """What the model is made of, in a few words."""
        streams, heads, order = len(self.model.streams), heads_of(self.model), orders(self.model)[0]
        word = f" × {''.join(order)}" if order and all(len(group) == 1 for group in order) else ""
        found = [_counted(streams, "streams")] if streams > 1 else []
        depth, segments = self.model.depth, ""
        if isinstance(self.tokenizer, BoardTokens):
            depth = self.tokenizer.manifest["segment_depth"]
            segments = f"{_counted(self.model.depth // depth, 'segments')} of "
        found.append(f"{segments}{_counted(depth, self.model.level_name)}{word}")
        return found + ([_counted(heads, "heads")] if heads else [])

    def encode(self, prompt: str, cut: bool = False) -> list[int]:
        """The prompt's tokens; with `cut` only the first that can be shown."""
        tokens = self.tokenizer.encode(prompt)
        return self.check_tokens(tokens[: self.max_tokens] if cut else tokens)

    def check_tokens(self, tokens: Sequence[int]) -> list[int]:
        """The ids as a list, or one line about why the model cannot read them."""
        if not tokens:
            raise UserError("the prompt is empty: write at least one token")
        if len(tokens) > self.max_tokens:
            raise TooLong(len(tokens), self.max_tokens)
        vocabulary = self.model.config.vocab_size
        if not all(0 <= token < vocabulary for token in tokens):
            raise UserError(f"a token id is not in 0…{vocabulary - 1}")
        return list(tokens)

    # the questions

    def trace(
        self, tokens: Sequence[int], intervention: Intervention | None = None, checkpoint: str = ""
    ) -> Trace:
        subject = self.subject(checkpoint)
        intervention = intervention or Intervention()
        hooks = self.hooks(tokens, intervention, checkpoint)
        # what it would say without the intervention
        answer = int(self.baseline(tokens, checkpoint).log_probs[-1].argmax()) if hooks else None
        note = {"checkpoint": checkpoint, "intervention": intervention.to_dict()}
        return capture(
            subject.model,
            self.tokenizer,
            tokens,
            hooks=hooks,
            reference=subject.reference,
            lexicon=subject.lexicon,
            name=self.name,
            note=note,
            python=self.python,
            answer=answer,
        )

    def intervene(
        self, tokens: Sequence[int], intervention: Intervention, checkpoint: str = "", each: bool = False
    ) -> dict[str, Any]:
        """Before and after at every token: likeliest tokens with both probabilities, and KL in bits.

        `each` also runs every ablation alone, to set their sum against the joint effect.
        """
        subject = self.subject(checkpoint)
        streams_of(subject.model, "an intervention")
        baseline = self.baseline(tokens, checkpoint)
        outcome = evaluate(subject.model, baseline, intervention, subject.dictionary)
        before, after = baseline.log_probs.exp(), outcome.log_probs.exp()
        likeliest = baseline.reading.likeliest
        top_before, top_after = (likeliest(one.log_probs, BARS) for one in (baseline, outcome))
        used = sorted({*top_before.flatten().tolist(), *top_after.flatten().tolist()})
        alone = []
        if each:
            for ablation in intervention.ablations:
                single = evaluate(subject.model, baseline, Intervention(ablations=(ablation,)))
                alone.append({"stream": ablation.stream, "kl": _rounded(single.kl)})
        return {
            "kl": _rounded(outcome.kl),
            "top_before": _bars(top_before, before, after),
            "top_after": _bars(top_after, before, after),
            "vocabulary": dict(zip(map(str, used), display_strings(self.tokenizer, used), strict=True)),
            "each": alone,
        }

    def paths(
        self,
        tokens: Sequence[int],
        token: int,
        target: int | None = None,
        intervention: Intervention | None = None,
        checkpoint: str = "",
    ) -> dict[str, Any]:
        """What the prediction of `target` after `token` owes to every edge, in logits."""
        subject, means = self.subject(checkpoint), self.baseline(tokens, checkpoint).means
        hooks = self.hooks(tokens, intervention or Intervention(), checkpoint)
        ids = torch.tensor(list(tokens), device=subject.model.device)
        found = edge_attribution(subject.model, ids, token, target, means, hooks)
        arrays = {name: getattr(found, name) for name in ("edges", "earlier", "nodes", "direct")}
        return {
            "target": found.target,
            "logit": found.logit,
            **{name: _rounded(values.flatten()) for name, values in arrays.items()},
        }

    def attention(
        self,
        tokens: Sequence[int],
        call: int,
        intervention: Intervention | None = None,
        checkpoint: str = "",
    ) -> Tensor:
        """How much each token reads of each in one call of attention: [stream, head, token, token read]."""
        hooks = self.hooks(tokens, intervention or Intervention(), checkpoint)
        return attention_weights(self.subject(checkpoint).model, tokens, call, hooks)

    def induction(self, checkpoint: str = "") -> Induction:
        """The induction score of every head, measured once, on sequences seeded by the evaluation text."""
        if not self._measures_induction:
            raise UserError("there is no evaluation text, which seeds the random sequences of induction")
        if checkpoint not in self._induction:
            self._induction[checkpoint] = induction(self.subject(checkpoint).model, self.evaluation)
        return self._induction[checkpoint]

    def hooks(self, tokens: Sequence[int], intervention: Intervention, checkpoint: str = "") -> list[Hook]:
        """The intervention on these weights and this prompt; refused in one line where it cannot be."""
        if not intervention:
            return []
        subject = self.subject(checkpoint)
        streams_of(subject.model, "an intervention")
        intervention.check(subject.model, len(tokens), subject.dictionary)
        means = self.baseline(tokens, checkpoint).means
        return intervention.hooks(subject.model, means, subject.dictionary)

    def generate(
        self,
        tokens: Sequence[int],
        count: int,
        temperature: float,
        top_k: int | None,
        seed: int,
        intervention: Intervention | None = None,
        checkpoint: str = "",
        exit: Exit | None = None,
    ) -> list[int]:
        """The prompt and up to `count` tokens more, as many as still can be shown. With an intervention every
        token is the answer to a whole pass: it may be about a place in the prompt, or about other tokens.
        `exit` stops the recursion where its state has settled, and counts the levels.
        """
        if exit is not None and intervention:
            raise UserError("early exit skips layers, and an intervention needs them all: choose one")
        subject = self.subject(checkpoint)
        hooks = self.hooks(tokens, intervention or Intervention(), checkpoint)
        count = min(count, self.max_tokens - len(tokens))
        prompt = torch.tensor([list(tokens)], device=subject.model.device)
        with subject.model.hooks(hooks):
            out = generate(
                subject.model,
                prompt,
                count,
                temperature=temperature,
                top_k=top_k,
                seed=seed,
                use_cache=not hooks,
                exit=exit,
            )
        return out[0].tolist()

    # features of the dictionary

    def _lexicon(self) -> Lexicon:
        if self.lexicon is None:
            raise UserError("there is no dictionary for these weights: train one with srmlab dictionary RUN")
        return self.lexicon

    def feature(self, stream: int, feature: int) -> dict[str, Any]:
        """A feature's card: its tokens, examples, note, and how strong it is over the evaluation text."""
        lexicon = self._lexicon()
        note = self.notes.notes.get(str_of((stream, feature)), Note())
        found = card(lexicon, self.tokenizer, note, stream, feature)
        if self._used is None and self.evaluation:
            self._used = in_use_over(self.model, lexicon, self.evaluation)
        bars = histogram(self._used, stream, feature) if self._used is not None else None
        return {**found, "histogram": bars}

    def features(self, query: str) -> list[dict[str, Any]]:
        return find(self._lexicon(), self.tokenizer, self.notes, query)

    def dictionary_page(self) -> str:
        """The strongest features of each stream, as `srmlab dictionary` writes them: HTML."""

        def decode(token: int) -> str:
            return self.tokenizer.token_strings([token])[0]

        return page_of(self._lexicon().features, decode, f"Features of {self.name}")

    def note_feature(self, stream: int, feature: int, note: Note) -> dict[str, Any]:
        """Keep what a reader says of a feature in the run."""
        card(self._lexicon(), self.tokenizer, note, stream, feature)  # there is such a feature
        self.notes.put(str_of((stream, feature)), note)
        return self.feature(stream, feature)

    def switch(self, edge: tuple[int, int, int, int]) -> dict[str, Any]:
        """An edge's card: which features open it."""
        if self.switches is None:
            raise UserError("the switches have not been measured: run srmlab analyze RUN --only switches")
        return switch_card(self.switches, edge, self.lexicon, self.tokenizer)

    def sweep(self, tokens: Sequence[int], mode: By, checkpoint: str = "") -> Iterator[dict[str, Any]]:
        """Every stream ablated after every layer, one at a time: layer, stream, KL in bits at each token."""
        model = self.subject(checkpoint).model
        for layer in range(model.depth):
            for stream in range(len(model.streams)):
                ablation = AblatedStream(stream, mode, layer, layer)
                outcome = evaluate(model, self.baseline(tokens, checkpoint), Intervention((ablation,)))
                yield {"layer": layer, "stream": stream, "kl": _rounded(outcome.kl)}

    # kept between questions

    def subject(self, checkpoint: str = "") -> Subject:
        """The weights of that name; besides the model itself the last checkpoint stays loaded."""
        if checkpoint not in self._subjects:
            make = {**self.checkpoints, **({TWIN: self._untrained} if self.twin else {})}
            if checkpoint not in make:
                raise UserError("no such checkpoint: the model's page lists them")
            for name in list(self._subjects)[1:]:
                if TWIN not in (name, checkpoint):  # the twin stands beside whichever it is
                    del self._subjects[name]
            model = make[checkpoint]().eval()
            # its own means, over the model's text: those of the prompt would be another measure
            with_means = self.reference is not None and self.evaluation
            self._subjects[checkpoint] = Subject(
                model, state_means(model, self.evaluation) if with_means else None
            )
        return self._subjects[checkpoint]

    def _untrained(self) -> LanguageModel:
        return next(twins(self.model, 1))[1]

    def baseline(self, tokens: Sequence[int], checkpoint: str = "") -> Baseline:
        key = (checkpoint, tuple(tokens))
        if key not in self._baselines:
            subject = self.subject(checkpoint)
            ids = torch.tensor(list(tokens), device=subject.model.device)
            reading = reading_of(self.tokenizer)
            self._baselines[key] = Baseline.of(subject.model, ids, subject.reference, reading)
            while len(self._baselines) > KEPT_BASELINES:
                self._baselines.popitem(last=False)
        self._baselines.move_to_end(key)
        return self._baselines[key]


def _counted(number: int, names: str) -> str:
    """(2, "layers") → '2 layers', (1, "layers") → '1 layer'."""
    return f"{number} {names if number != 1 else names.removesuffix('s')}"


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


def _bars(ids: Tensor, before: Tensor, after: Tensor) -> list[list[dict[str, Any]]]:
    """For every token the ids in their order, each with its probability before and after."""
    first, second = before.gather(-1, ids).tolist(), after.gather(-1, ids).tolist()
    return [
        [{"id": i, "before": round(p, 6), "after": round(q, 6)} for i, p, q in zip(*row, strict=True)]
        for row in zip(ids.tolist(), first, second, strict=True)
    ]
