"""`srmlab generate`: what is shown is what the model wrote, from presets and folders alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import srmlab
from srmlab.cli import main
from srmlab.cli.generate import Stream
from srmlab.data import byte_tokenizer
from srmlab.models import GPT2Config, LanguageModel

CONFIG = GPT2Config(vocab_size=257, context=40, dim=16, blocks=2, heads=2, mlp_dim=24, init_seed=3)


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return srmlab.build(CONFIG).eval()


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory) -> Path:
    return srmlab.save(model, tmp_path_factory.mktemp("exports") / "bytes", tokenizer=byte_tokenizer())


@pytest.fixture(scope="module")
def bare(model, tmp_path_factory) -> Path:
    return srmlab.save(model, tmp_path_factory.mktemp("exports") / "bare")


def run(capsys, *arguments: object) -> tuple[int | str | None, str, str]:
    with pytest.raises(SystemExit) as stop:
        main(["generate", *map(str, arguments)])
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def continuation(model: LanguageModel, prompt: list[int], count: int, **options) -> list[int]:
    written = srmlab.generate(model, torch.tensor([prompt]), count, stop_token=256, **options)
    return written[0, len(prompt) :].tolist()


def test_it_prints_the_prompt_and_the_text_that_srm_generate_writes(capsys, model, folder):
    code, out, err = run(
        capsys,
        folder,
        "--prompt",
        "né",
        "--max-new-tokens",
        20,
        "--temperature",
        0.7,
        "--top-k",
        9,
        "--seed",
        5,
    )
    new = continuation(model, list("né".encode()), 20, temperature=0.7, top_k=9, seed=5)
    assert (code, err) == (0, "")
    assert out == "né" + byte_tokenizer().decode([token for token in new if token != 256]) + "\n"


def test_json_holds_tokens_text_and_a_seed_that_repeats_it(capsys, model, folder):
    options = (folder, "--prompt", "ab", "--max-new-tokens", 9, "--top-p", 0.9, "--json")
    code, out, _ = run(capsys, *options)
    answer = json.loads(out)
    assert code == 0
    assert answer["prompt_tokens"] == [97, 98]
    new = continuation(model, [97, 98], 9, temperature=0.8, top_p=0.9, seed=answer["seed"])
    assert answer["new_tokens"] == new
    assert answer["text"] == byte_tokenizer().decode([token for token in new if token != 256])
    assert json.loads(run(capsys, *options, "--seed", answer["seed"])[1]) == answer


def test_an_empty_prompt_starts_a_document(capsys, folder):
    answer = json.loads(run(capsys, folder, "--max-new-tokens", 2, "--json")[1])
    assert answer["prompt_tokens"] == [byte_tokenizer().end_of_text]


def test_a_folder_without_tokenizer_takes_and_gives_token_ids(capsys, model, bare):
    code, out, _ = run(capsys, bare, "--tokens", 1, 2, 3, "--max-new-tokens", 6, "--temperature", 0)
    written = srmlab.generate(model, torch.tensor([[1, 2, 3]]), 6, temperature=0)
    assert code == 0
    assert out.split() == [str(token) for token in written[0, 3:].tolist()]


def test_a_tokenizer_can_be_named(capsys, bare, folder):
    options = ("--prompt", "ab", "--max-new-tokens", 9, "--seed", 0)
    with_own = run(capsys, folder, *options)
    assert run(capsys, bare, *options, "--tokenizer", "byte") == with_own
    assert run(capsys, bare, *options, "--tokenizer", folder / "tokenizer") == with_own


def test_the_model_that_comes_with_the_package_writes_english(capsys):
    code, out, err = run(capsys, "--pretrained", "--prompt", "The people of the United", "--temperature", 0)
    assert (code, err) == (0, "")
    assert out.startswith("The people of the United States")
    code, _, err = run(capsys, "srm-nano", "--pretrained")
    assert code == 2
    assert "give either a run" in err


def test_the_name_of_a_shipped_model_is_that_model_and_not_its_preset(capsys):
    options = ("--prompt", "My fellow", "--max-new-tokens", "3", "--seed", "0")
    assert run(capsys, "srm-nano", *options) == run(capsys, "--pretrained", *options)


def test_a_preset_writes_noise_and_says_so(capsys):
    code, out, err = run(capsys, "gpt2-nano", "--prompt", "Hi", "--max-new-tokens", 3, "--seed", 1)
    assert code == 0
    assert err.startswith("gpt2-nano is a preset: its weights are random and it writes noise.")
    written = srmlab.generate(
        srmlab.build(srmlab.preset("gpt2-nano")), torch.tensor([[72, 105]]), 3, temperature=0.8, seed=1
    )
    assert out.split() == ["Hi", *map(str, written[0, 2:].tolist())]


def test_past_the_context_it_slides_when_asked(capsys, bare):
    options = (bare, "--tokens", 7, "--max-new-tokens", 60, "--seed", 2)
    code, _, err = run(capsys, *options)
    assert (code, err.count("\n")) == (2, 1)
    assert "exceed the context of 40" in err
    assert err.endswith("add --overflow slide\n")
    code, out, _ = run(capsys, *options, "--overflow", "slide", "--json")
    assert code == 0
    assert len(json.loads(out)["new_tokens"]) == 60


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["gpt2-nan"], "did you mean 'gpt2-nano'?"),
        (["no/such/run"], "no/such/run does not exist: give a run, a checkpoint, an export or a preset"),
        (["FOLDER", "--tokens", "1", "--prompt", "a"], "give one of them"),
        (["FOLDER", "--tokens", "999"], "token 999 is not in the model's vocabulary of 257 ids"),
        (["FOLDER", "--temperature", "-1"], "temperature = -1.0: must be 0 (greedy) or more"),
        (["FOLDER", "--tokenizer", "gpt7"], "unknown tokenizer 'gpt7'"),
        (["--pretrained", "--tokenizer", "byte"], "has its own, bpe:512; leave it out"),
        (["BARE", "--prompt", "a"], "give --tokens 1 2 3, or --tokenizer gpt2"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, folder, bare, arguments, complaint):
    places = {"FOLDER": folder, "BARE": bare}
    code, _, err = run(capsys, *(places.get(word, word) for word in arguments))
    assert code == 2
    assert complaint in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("srmlab generate: ")
    assert "Traceback" not in err


def test_nothing_is_printed_before_a_setting_is_refused(capsys, folder):
    for bad in (("--top-k", 0), ("--top-p", 2), ("--max-new-tokens", -1), ("--max-new-tokens", 99)):
        code, out, err = run(capsys, folder, "--prompt", "a", *bad)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "None" not in err


def test_no_new_tokens_leave_the_prompt(capsys, folder):
    assert run(capsys, folder, "--prompt", "a", "--max-new-tokens", 0) == (0, "a\n", "")


def test_streamed_pieces_add_up_to_the_decoded_text():
    tokenizer = byte_tokenizer()
    tokens = [*"aé🦊".encode(), 0xE2, 0x82, 65, 0xF0, 0x9F]  # with two cut characters
    stream = Stream(tokenizer)
    pieces = [stream.push(token) for token in tokens]
    assert pieces[:3] == ["a", "", "é"]
    assert "".join(pieces) + stream.close() == tokenizer.decode(tokens)


def test_an_id_the_tokenizer_does_not_use_shows_as_its_number():
    assert Stream(byte_tokenizer()).all([65, 300, 256, 66]) == "A<300>B"


def test_early_exit_says_how_many_layers_it_used(capsys):
    code, out, err = run(
        capsys, "--pretrained", "--prompt", "My", "--max-new-tokens", 8, "--seed", 0, "--exit", 0.2
    )
    assert code == 0
    used, of = err.split(" of 8 layers per token")
    assert 1 <= float(used) < 8
    assert of == "\n"
    _, answer, _ = run(
        capsys, "--pretrained", "--prompt", "My", "--max-new-tokens", 8, "--seed", 0, "--exit", 0.2, "--json"
    )
    assert json.loads(answer)["text"] == out.removeprefix("My").rstrip("\n")
    assert json.loads(answer)["mean_levels"] == pytest.approx(float(used), abs=0.005)


def test_early_exit_of_a_model_without_recursion_is_refused_in_one_line(capsys, folder):
    code, _, err = run(capsys, folder, "--max-new-tokens", 8, "--exit", 0.1)
    assert code == 2
    assert err == "srmlab generate: gpt2 has no early exit; leave exit out\n"
