"""A command's options: parsed from the command line, with one-line messages for what is wrong.

tyro parses them and reports errors as events (`tyro._errors`, which tyro may change in any release: for an
unknown event, or without events, tyro's own message is shown).
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import inspect
import io
import re
import shutil
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

from srmlab.errors import UserError

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry

OTHER_NAMES = {  # ours → what people type who come from other tools
    "accumulate": "gradient-accumulation-steps grad-accum grad-accumulation accumulate-grad-batches",
    "activation-checkpointing": "gradient-checkpointing grad-checkpointing recompute",
    "batch-size": "bs train-batch-size per-device-train-batch-size global-batch-size",
    "browser": "open open-browser",
    "checkpoint-every": "save-steps save-every save-interval checkpoint-interval",
    "clip": "grad-clip max-grad-norm clip-grad clip-grad-norm gradient-clip gradient-clipping",
    "column": "text-column text-field field",
    "context": "block-size seq-len seq-length max-seq-len sequence-length context-length n-ctx",
    "data": "dataset data-dir dataset-dir train-data data-path",
    "dtype": "precision mixed-precision bf16 fp16 torch-dtype",
    "eval-every": "eval-interval eval-steps eval-freq val-interval",
    "init-from": "finetune-from from-pretrained model-name-or-path init",
    "keep-checkpoints": "save-total-limit keep-last",
    "log-every": "log-interval logging-steps",
    "lr": "learning-rate max-lr peak-lr learningrate",
    "lr-end": "min-lr final-lr",
    "max-new-tokens": "max-tokens num-tokens n-tokens max-length length",
    "model.depth": "depth n-layers n-layer num-layers num-hidden-layers layers",
    "model.blocks": "n-layers n-layer num-layers num-hidden-layers layers depth",
    "model.heads": "n-heads n-head num-heads num-attention-heads",
    "model.token-heads": "n-heads n-head num-heads num-attention-heads heads",
    "no-browser": "no-open no-open-browser headless",
    "null": "nulls twins untrained",
    "out": "output-dir out-dir output save-dir outdir o",
    "prompt": "start input text prefix",
    "schedule": "lr-schedule scheduler lr-scheduler lr-scheduler-type",
    "seed": "random-seed rng-seed",
    "steps": "max-steps max-iters num-steps n-steps iters iterations total-steps epochs num-train-epochs",
    "to": "format type",
    "tokens": "limit-tokens max-tokens num-tokens n-tokens eval-tokens",
    "val-fraction": "val-split test-size validation-split",
    "wandb": "wandb-project report-to",
    "warmup": "warmup-steps warmup-iters num-warmup-steps",
    "weight-decay": "wd",
}


def parse(kind: type, prog: str, arguments: list[str], defaults: Any = None) -> Any:
    """A command with its options filled in. Its whole docstring is the help, with the example.

    `defaults` is the command before its options, where those depend on the arguments (as on the preset).
    """
    import tyro

    def refuse(event: Any) -> None:
        if message := complaint(event, lambda: option_names(kind, prog, defaults), arguments):
            raise UserError(message)

    events = getattr(tyro, "_errors", None)
    given = {} if defaults is None else {"default": defaults}
    with contextlib.nullcontext() if events is None else events.on_parse_error(refuse):
        return tyro.cli(
            kind,
            prog=prog,
            args=arguments,
            description=wrapped(inspect.getdoc(kind) or ""),
            registry=readings(),
            **given,
        )


def wrapped(text: str) -> str:
    """Paragraphs filled to the width of the terminal; examples, which are indented, stay as they are. All
    lines but the first are indented, as tyro joins those that begin with a letter.
    """
    width = min(shutil.get_terminal_size().columns, 110)
    return "\n\n".join(
        part if "\n " in part else textwrap.fill(part, width, subsequent_indent="  ", break_on_hyphens=False)
        for part in text.split("\n\n")
    )


def complaint(event: Any, known: Any, arguments: Sequence[str] = ()) -> str | None:
    """What a parse error of tyro's comes to; None for one that is not known here."""
    see_help = f"; `{event.prog} --help` shows the options"
    match type(event).__name__:
        case "MissingArgs":
            names = known()
            for option in (typed.partition("=")[0] for typed in arguments if re.match("--[A-Za-z]", typed)):
                hint = "" if option.replace("_", "-") in names else suggestion(option, names)
                if hint:  # perhaps what is missing, under another name
                    return f"Unrecognized options: {option}{hint}"
            return ", ".join(_name(each.arg) for each in event.missing_arguments) + f" missing{see_help}"
        case "UnrecognizedArgs":
            options = [token.partition("=")[0] for token in event.tokens if re.match("--?[A-Za-z]", token)]
            hint = suggestion(options[0], known()) if options else ""
            return f"Unrecognized options: {', '.join(options or event.tokens)}{hint or see_help}"
        case "InvalidChoice":
            return f"{_name(event.argument)} {event.value}: must be one of {', '.join(event.choices)}"
        case "BadValue":
            count = event.argument.lowered.nargs
            needs = f"needs {count} values" if isinstance(count, int) and count > 1 else "needs a value"
            needs = "missing" if event.argument.is_positional() else needs
            return f"{_name(event.argument)} {needs}{see_help}"
        case "InstantiationFailure" if event.argument is None:
            return event.message  # a dataclass of ours refused: it names its own field
        case "InstantiationFailure":
            return f"{_name(event.argument)} {_plain(event.message, event.argument.field.type_stripped)}"
    return None


def _name(argument: Any) -> str:
    if argument.is_positional():
        metavar = str(argument.lowered.metavar)
        return metavar if metavar.isidentifier() else argument.field.intern_name.upper()
    return argument.lowered.name_or_flags[-1]


def _plain(message: str, kind: Any) -> str:
    """Python's messages about what is not a number, in plain words; others as they are."""
    if found := re.match(r"invalid literal for int\(\) with base 10: (.*)", message):
        return f"{found[1]}: must be a whole number"
    if found := re.match(r"could not convert string to float: (.*)", message):
        return f"{found[1]}: must be a number"
    if found := re.match(r"Could not (?:find valid )?parse.* arguments:? \[(.*?)\]", message):
        return f"{found[1]}: must be {'whole numbers' if int in get_args(kind) else 'numbers'}"
    return message.rstrip(".")


def suggestion(option: str, known: Sequence[str]) -> str:
    """ "; did you mean '--lr'?" for --learning-rate: by the names of other tools, by the last part of a name
    (--streams is --model.streams), by its beginning, by likeness; nothing if none is near.
    """
    typed = option.lstrip("-").replace("_", "-")
    names = [name.removeprefix("--") for name in known]
    last = {name.rpartition(".")[2]: name for name in reversed(names)}
    likely = [
        *(ours for ours, others in OTHER_NAMES.items() if typed in others.split() and ours in names),
        *([last[typed]] if typed in last else []),
        *(name for name in names if name.startswith(typed)),
        *difflib.get_close_matches(typed, names, n=1, cutoff=0.6),
        *(last[part] for part in difflib.get_close_matches(typed.rpartition(".")[2], last, n=1, cutoff=0.7)),
    ]
    return f"; did you mean '--{likely[0]}'?" if likely else ""


def option_names(kind: type, prog: str, defaults: Any = None) -> list[str]:
    """The options of a command, as its help lists them."""
    import tyro

    given = {} if defaults is None else {"default": defaults}
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        tyro.cli(kind, prog=prog, args=["--help"], description="", **given)
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][\w.-]*", text.getvalue().partition("options")[2])))


def readings() -> ConstructorRegistry:
    """How values are read where tyro's own way will not do. An `int | None` is INT in the help, with
    "default: none", and takes none for no value. A path is not empty.
    """
    from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

    registry = ConstructorRegistry()

    @registry.primitive_rule
    def path(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        def read(words: list[str]) -> Path:
            if not words[0]:  # as --out "$UNSET": Python's Path("") is the current folder
                raise ValueError("is empty: give a path")
            return Path(words[0])

        if info.type is not Path:
            return None
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar="PATH",
            instance_from_str=read,
            is_instance=lambda value: isinstance(value, Path),
            str_from_instance=lambda value: [str(value)],
        )

    @registry.primitive_rule
    def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec | None:
        kinds = [kind for kind in get_args(info.type) if kind is not NoneType]
        if get_origin(info.type) not in (Union, UnionType) or len(kinds) != 1:
            return None
        inner = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(kinds[0], info.markers))
        if not isinstance(inner, PrimitiveConstructorSpec) or inner.nargs != 1:
            return None  # tyro's own way
        return dataclasses.replace(
            inner,
            choices=inner.choices and (*inner.choices, "none"),
            instance_from_str=lambda words: (
                None if words[0] in ("none", "None") else inner.instance_from_str(words)
            ),
            is_instance=lambda value: value is None or inner.is_instance(value),
            str_from_instance=lambda value: ["none"] if value is None else inner.str_from_instance(value),
        )

    return registry
