#!/usr/bin/env python3
"""Text from a causal language model whose weights Tensora loads.

    uv run python examples/pytorch.py gpt2 --prompt "Hello"
    uv run python examples/pytorch.py path/to/model --prompt "Hello" --backend io-uring --temperature 0

transformers gives the configuration, the tokenizer and the class of the model; no weight is read by
it, and none is made that is thrown away afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tensora_py
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig


def main() -> int:
    options = arguments()
    try:
        run(options)
    except (Refused, tensora_py.TensoraError) as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 1
    return 0


class Refused(Exception):
    """The model cannot be used; the message says why."""


def run(options: argparse.Namespace) -> None:
    """Loads the model, and prints what it makes of the prompt."""
    path = find(options.model)
    folder = path if path.is_dir() else path.parent
    if not (folder / "config.json").is_file():
        raise Refused(f"{folder}: there is no config.json, which says what kind of model it is")
    with in_layout(path, options.format) as weights:
        tensors = load(weights, options.format, options.backend, options.device)
    model = build(folder, tensors, options.device)
    print(generated(model, folder, options))


def find(model: str) -> Path:
    """The path, or the folder in the cache of the Hub that a model was downloaded to."""
    path = Path(model)
    return path if path.exists() else Path(tensora_py.pull(model))


@contextlib.contextmanager
def in_layout(path: Path, layout: str | None) -> Iterator[Path]:
    """The path, or a copy in the other layout, which is gone afterwards."""
    if layout is None or has_layout(path, layout):
        yield path
        return
    # What was loaded, or mapped, stays when the files are gone.
    with tempfile.TemporaryDirectory(prefix="tensora-") as folder:
        report = tensora_py.convert(path, folder, to=layout)
        say(
            f"converted {report['tensors']} tensors to {layout} for this run; "
            f"tensora_py.convert({str(path)!r}, FOLDER, to={layout!r}) makes a copy that stays"
        )
        yield Path(folder)


def has_layout(path: Path, layout: str) -> bool:
    """Whether there are weights in this layout; an error where there are none in any."""
    try:
        tensora_py.open(path, layout=layout).close()
    except tensora_py.TensoraError:
        return tensora_py.open(path).layout == layout
    return True


def load(path: Path, layout: str | None, backend: str, device: str) -> dict[str, torch.Tensor]:
    """All tensors by name, and a line about how they came."""
    with tensora_py.open(path, layout=layout, backend=backend) as checkpoint:
        decision = checkpoint.plan().details["schedule"]["decision"]
        layout, nbytes = checkpoint.layout, checkpoint.nbytes
    begun = time.perf_counter()
    tensors = tensora_py.load(path, layout=layout, backend=backend, device=device)
    seconds = time.perf_counter() - begun
    say(
        f"loaded {len(tensors)} tensors, {nbytes} bytes of {layout}, in {seconds:.3f} s "
        f"({nbytes / seconds / 1e9:.2f} GB/s); backend {decision['backend']}: {decision['reason']}"
    )
    return tensors


def build(folder: Path, tensors: dict[str, torch.Tensor], device: str) -> Any:
    """The model that a folder's configuration describes, around these tensors: none is copied."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if getattr(config, "quantization_config", None) is not None:
        raise Refused(f"{folder}: quantized weights need the code of their quantization")
    with parameters_on_meta():
        model = AutoModelForCausalLM.from_config(config)
    state = {
        name: of_dtype(tensor, config.dtype) for name, tensor in renamed(model, tensors).items()
    }
    try:
        missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    except RuntimeError as error:
        # Shapes that are not those of the configuration.
        raise Refused(f"{folder}: {error}") from None
    missing = set(missing)
    # Takes those away that are another tensor by a second name.
    model.tie_weights(missing_keys=missing)
    unexpected = [name for name in unexpected if not is_dropped(model, name)]
    if missing or unexpected:
        raise Refused(
            f"{folder}: the tensors are not those of {type(model).__name__}"
            f"{listed('missing', missing)}{listed('unexpected', unexpected)}\n"
            "  transformers fuses the experts of some models; it takes loaded tensors for that, too: "
            f"{type(model).__name__}.from_pretrained(None, config=config, state_dict=tensors)"
        )
    if (folder / "generation_config.json").is_file():
        model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    return model.to(device).eval()


@contextlib.contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Modules that are made have parameters without memory, but real buffers.

    ``with torch.device("meta")`` would leave buffers without values that no checkpoint has, such as
    the frequencies of rotary embeddings.
    """
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None:
            # Memory that nobody has touched: reserved for a moment, and never filled.
            parameter = nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    nn.Module.register_parameter = on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


def renamed(model: Any, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tensors by the names that the model has for them: files of GPT-2 leave out the first part."""
    expected, prefix = model.state_dict().keys(), model.base_model_prefix

    def name_of(name: str) -> str:
        longer = f"{prefix}.{name}"
        return longer if name not in expected and longer in expected else name

    return {name_of(name): tensor for name, tensor in tensors.items()}


def of_dtype(tensor: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    """The tensor in the dtype that the configuration names; most are."""
    floats = (torch.float16, torch.bfloat16, torch.float32)
    return tensor.to(dtype) if dtype in floats and tensor.dtype in floats else tensor


def is_dropped(model: Any, name: str) -> bool:
    """Whether files may have it without use: masks and frequencies that the model computes."""
    persistent = model.state_dict().keys()
    computed = {short(key) for key, _ in model.named_buffers() if key not in persistent}
    patterns: Iterable[str] = model._keys_to_ignore_on_load_unexpected or ()
    return short(name) in computed or any(re.search(pattern, name) for pattern in patterns)


def short(name: str) -> str:
    """The module and the name in it."""
    return ".".join(name.split(".")[-2:])


def listed(what: str, names: Iterable[str]) -> str:
    """A line for an error."""
    some = sorted(names)
    more = f" and {len(some) - 8} more" if len(some) > 8 else ""
    return f"\n  {what}: {', '.join(some[:8])}{more}" if some else ""


def generated(model: Any, folder: Path, options: argparse.Namespace) -> str:
    """The prompt and what comes after it."""
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    inputs = tokenizer(options.prompt, return_tensors="pt").to(options.device)
    given = inputs["input_ids"].shape[-1]
    # Some models have no end.
    positions = getattr(model.config, "max_position_embeddings", None) or sys.maxsize
    if not 0 < given < positions:
        raise Refused(f"the prompt has {given} tokens, and the model {positions} positions")
    sampling: dict[str, Any] = {"do_sample": True, "temperature": options.temperature}
    if options.temperature == 0:
        # The others would be warned about: only sampling has them.
        sampling = {"do_sample": False, "temperature": None, "top_k": None, "top_p": None}
    pad = tokenizer.pad_token_id
    with torch.inference_mode():
        tokens = model.generate(
            **inputs,
            max_new_tokens=min(options.max_tokens, positions - given),
            pad_token_id=tokenizer.eos_token_id if pad is None else pad,
            **sampling,
        )
    text: str = tokenizer.decode(tokens[0], skip_special_tokens=True)
    return text


def say(line: str) -> None:
    """To the terminal, so that the output is the text alone."""
    print(line, file=sys.stderr)


def arguments() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description="Text from a causal language model whose weights Tensora loads."
    )
    parser.add_argument("model", help="a folder, a file, or the id of a model on the Hub")
    parser.add_argument("--prompt", type=some, required=True, help="what the text begins with")
    parser.add_argument(
        "--format",
        choices=["safetensors", "serverlessllm"],
        help="load from this layout, and convert first where the model has the other one",
    )
    parser.add_argument(
        "--backend",
        choices=["default", "sync", "async", "io-uring", "mmap"],
        default="default",
        help="who reads",
    )
    parser.add_argument(
        "--device", type=device, default="cpu", help="where the model shall run: cpu, cuda, ..."
    )
    parser.add_argument("--max-tokens", type=positive, default=64, help="new tokens at most (64)")
    parser.add_argument(
        "--temperature", type=warmth, default=1.0, help="0 takes the likeliest token (1.0)"
    )
    return parser.parse_args()


def some(text: str) -> str:
    """What a text can begin with."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty, and a model goes on from something")
    if text.encode(errors="ignore").decode() != text:
        raise argparse.ArgumentTypeError(f"{text!r} is no Unicode")
    return text


def device(text: str) -> str:
    """A device that is there, and has memory."""
    try:
        torch.zeros(1, device=text).cpu()
    except (RuntimeError, AssertionError) as error:
        # More lines are about the inside of torch.
        raise argparse.ArgumentTypeError(str(error).partition("\n")[0]) from None
    return text


def positive(text: str) -> int:
    """A number of tokens."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def warmth(text: str) -> float:
    """A temperature."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not 0 or more")
    return number


if __name__ == "__main__":
    sys.exit(main())
