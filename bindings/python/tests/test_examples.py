"""The examples, run as a user runs them, on models that are made on the spot."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import tensora_py
from helpers import stored, write_safetensors
from safetensors.numpy import load_file, save_file

EXAMPLES = Path(__file__).parent.parent / "examples"

# Runs an example in a process where nobody but Tensora can read weights.
ALONE = """
import runpy, sys
import safetensors, safetensors.torch, torch

def refused(*_, **__):
    raise AssertionError("weights were read by somebody else")

for module, name in [
    (safetensors, "safe_open"), (safetensors, "deserialize"), (safetensors.torch, "load_file"),
    (safetensors.torch, "safe_open"), (safetensors.torch, "load"), (torch, "load"),
]:
    setattr(module, name, refused)

import transformers.modeling_utils
assert transformers.modeling_utils.safe_open is refused
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run(
    name: str, *arguments: str | Path, alone: bool = False, **environment: str
) -> subprocess.CompletedProcess[str]:
    """An example with these arguments."""
    command = [sys.executable, *(["-c", ALONE] if alone else []), EXAMPLES / name, *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "HF_HUB_OFFLINE": "1", **environment},
    )


def test_slices_of_a_tensor(tmp_path: Path) -> None:
    tensors = {
        "embed.weight": numpy.arange(64 * 48, dtype=numpy.float32).reshape(64, 48),
        "scale": numpy.array(2.0, dtype=numpy.float32),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    for arguments in ([tmp_path], [tmp_path, "embed.weight"]):
        done = run("numpy_slices.py", *arguments, "--rank", "1", "--world", "4")
        assert done.returncode == 0, done.stderr
        assert "embed.weight: F32 (64, 48), 12288 bytes" in done.stdout
        assert "rows 16 to 32" in done.stdout
        assert "3072 of 12288 bytes" in done.stdout
    lines = done.stdout.splitlines()
    [shard] = [line for line in lines if line.startswith("rows 16 to 32")]
    assert f"sum {tensors['embed.weight'][16:32].sum():.6g}" in shard


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["embed.wieght"], 1, "embed.weight"),
        (["scale"], 1, "no rows"),
        ([""], 1, "no tensor of this name"),
        (["embed.weight", "--rank", "4", "--world", "4"], 2, "--rank 4"),
        (["embed.weight", "--rank", "-1"], 2, "--rank -1"),
        (["embed.weight", "--world", "0"], 2, "--world 0"),
        (["embed.weight", "--world", "x"], 2, "--world: "),
        (["packed"], 1, "F6_E2M3"),
    ],
)
def test_slices_that_cannot_be(
    tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    tensors = {
        "embed.weight": stored("F32", (8, 4)),
        "scale": stored("F32", ()),
        "packed": stored("F6_E2M3", (4,)),
    }
    write_safetensors(tmp_path / "model.safetensors", tensors)
    done = run("numpy_slices.py", tmp_path, *arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


KINDS = ["llama", "qwen3", "gpt2"]


def configuration(kind: str) -> Any:
    """A tiny model of this kind."""
    import transformers

    if kind == "gpt2":
        return transformers.GPT2Config(
            vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=0
        )
    common = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if kind == "llama":
        # Frequencies that depend on the configuration, and weights that are not tied.
        rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
        return transformers.LlamaConfig(**common, rope_parameters=rope, tie_word_embeddings=False)
    return transformers.Qwen3Config(**common, head_dim=8, tie_word_embeddings=True)


def make_tokenizer(folder: Path) -> None:
    """A tokenizer that was trained on a few lines."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=64, special_tokens=["<s>", "</s>", "<unk>"])
    lines = ["Hello there, said the fox", "the fox said hello to the hen", "there is the hen"]
    tokenizer.train_from_iterator(lines, trainer)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with tiny models, in bfloat16 but for GPT-2."""
    import torch
    from transformers import AutoModelForCausalLM

    folders: dict[str, Path] = {}
    for kind in KINDS:
        torch.manual_seed(len(folders))
        folder = tmp_path_factory.mktemp(kind)
        model = AutoModelForCausalLM.from_config(configuration(kind))
        model = model if kind == "gpt2" else model.to(torch.bfloat16)
        model.save_pretrained(folder)
        make_tokenizer(folder)
        folders[kind] = folder
    return folders


@pytest.fixture(scope="session")
def example() -> Any:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("example_pytorch", EXAMPLES / "pytorch.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def logits(model: Any) -> Any:
    import torch

    with torch.inference_mode():
        return model(torch.arange(40).reshape(2, 20)).logits


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", [None, "serverlessllm"])
def test_logits_are_those_of_transformers(
    models: dict[str, Path], example: Any, kind: str, layout: str | None
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folder = models[kind]
    with example.in_layout(folder, layout) as weights:
        tensors = example.load(weights, layout, "default", "cpu")
    addresses = {tensor.data_ptr() for tensor in tensors.values()}
    model = example.build(folder, tensors, "cpu")
    reference = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert torch.equal(logits(model), logits(reference))
    for (name, ours), (other, theirs) in zip(
        model.named_buffers(), reference.named_buffers(), strict=True
    ):
        assert name == other
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs), name
    assert {parameter.data_ptr() for parameter in model.parameters()} == addresses


@pytest.mark.torch
def test_text_without_another_read_of_the_weights(models: dict[str, Path]) -> None:
    folder = models["llama"]
    done = run(
        "pytorch.py", folder, "--prompt", "the fox", "--temperature", "0", "--max-tokens",
        "8", "--backend", "sync", alone=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("the fox")
    assert f"{tensora_py.open(folder).nbytes} bytes of safetensors" in done.stderr
    assert "backend sync" in done.stderr
    assert done.stdout.strip() == reference_text(folder, "the fox", 8)


def reference_text(folder: Path, prompt: str, tokens: int) -> str:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    made = model.generate(
        **tokenizer(prompt, return_tensors="pt"), max_new_tokens=tokens, do_sample=False
    )
    return str(tokenizer.decode(made[0], skip_special_tokens=True)).strip()


@pytest.mark.torch
def test_an_id_without_organisation(models: dict[str, Path], tmp_path: Path) -> None:
    commit = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
    repository = tmp_path / "hub" / "models--gpt2"
    snapshot = repository / "snapshots" / commit
    shutil.copytree(models["gpt2"], snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    # As the published files of GPT-2 are: names without the first part, and masks among them.
    weights = snapshot / "model.safetensors"
    tensors = load_file(weights)
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    for layer in range(2):
        tensors[f"h.{layer}.attn.bias"] = numpy.tril(numpy.ones((1, 1, 64, 64), "f4"))
    save_file(tensors, weights, {"format": "pt"})
    done = run(
        "pytorch.py", "gpt2", "--prompt", "Hello", "--temperature", "0", "--max-tokens", "4",
        alone=True, HF_HUB_CACHE=str(tmp_path / "hub"), HF_HOME=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == reference_text(models["gpt2"], "Hello", 4)


@pytest.fixture
def call(
    example: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the example in this process, which has torch already: exit code, output, messages."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        monkeypatch.setattr(sys, "argv", ["pytorch.py", *map(str, arguments)])
        capsys.readouterr()
        code = example.main()
        written = capsys.readouterr()
        return code, written.out, written.err

    return call


@pytest.mark.torch
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "nowhere"], "--device: "),
        (["--device", "cuda:99"], "--device: "),
        (["--device", "meta"], "--device: "),
        (["--backend", "magic"], "--backend: invalid choice: 'magic'"),
        (["--prompt", ""], "--prompt: "),
        (["--prompt", "\udcff"], "--prompt: "),
        (["--max-tokens", "0"], "--max-tokens: 0 is less than 1"),
        (["--max-tokens", "-3"], "--max-tokens: -3 is less than 1"),
        (["--max-tokens", "x"], "--max-tokens: 'x' is no whole number"),
        (["--temperature", "-1"], "--temperature: -1 is not 0 or more"),
        (["--temperature", "nan"], "--temperature: nan is not 0 or more"),
        (["--temperature", "x"], "--temperature: 'x' is no number"),
    ],
)
def test_arguments_that_cannot_be(
    models: dict[str, Path],
    call: Any,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit) as left:
        call(models["gpt2"], "--prompt", "Hello", *arguments)
    assert left.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("pytorch.py: error: argument ") and message in last


@pytest.mark.torch
def test_text_ends_where_the_model_has_no_more_positions(
    models: dict[str, Path], call: Any
) -> None:
    code, text, messages = call(models["gpt2"], "--prompt", "the fox", "--max-tokens", "1000")
    assert code == 0 and text.startswith("the fox"), messages
    code, text, messages = call(models["gpt2"], "--prompt", "the fox " * 100)
    assert (code, text) == (1, "")
    assert "64 positions" in messages


@pytest.mark.torch
def test_sampling_from_a_converted_copy(models: dict[str, Path], call: Any) -> None:
    folder = models["qwen3"]
    arguments = ("--prompt", "the hen", "--format", "serverlessllm", "--max-tokens", "2")
    code, text, messages = call(folder, *arguments)
    assert code == 0, messages
    assert "converted" in messages and "bytes of serverlessllm" in messages
    assert text.startswith("the hen")
    assert not (folder / "tensor_index.json").exists()


@pytest.mark.torch
def test_tensors_that_do_not_fit_end_it(models: dict[str, Path], tmp_path: Path, call: Any) -> None:
    import torch
    from safetensors.torch import load_file as load_torch
    from safetensors.torch import save_file as save_torch

    folder = tmp_path / "model"
    shutil.copytree(models["llama"], folder)
    weights = folder / "model.safetensors"
    tensors = load_torch(models["llama"] / "model.safetensors")
    norm = tensors.pop("model.norm.weight")
    save_torch({**tensors, "model.strange.weight": norm}, weights)
    code, text, messages = call(folder, "--prompt", "Hello")
    assert (code, text) == (1, "")
    assert "missing: model.norm.weight" in messages
    assert "unexpected: model.strange.weight" in messages
    save_torch({**tensors, "model.norm.weight": torch.ones(7)}, weights)
    code, text, messages = call(folder, "--prompt", "Hello")
    assert (code, text) == (1, "")
    assert "model.norm.weight" in messages and "size mismatch" in messages


@pytest.mark.torch
def test_folders_that_are_no_models(models: dict[str, Path], tmp_path: Path, call: Any) -> None:
    shutil.copy(models["gpt2"] / "model.safetensors", tmp_path)
    code, _, messages = call(tmp_path, "--prompt", "Hello")
    assert code == 1 and "there is no config.json" in messages
    config = json.loads((models["gpt2"] / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code, _, messages = call(tmp_path, "--prompt", "Hello")
    assert code == 1 and "quantized" in messages
    code, _, messages = call(tmp_path / "absent", "--prompt", "Hello")
    assert code == 1 and "absent" in messages
