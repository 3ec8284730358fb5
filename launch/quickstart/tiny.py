"""The tiny policy: a Qwen3 of 1.6M parameters, taught worked sums from scratch in about a minute.

Its teacher is careless: now and then a step is one too high, or it gives up before the end. So the policy knows how to
add, but at temperature 1 it is as careless as it was taught to be: about half of its answers are right, and
reinforcement learning can show within a minute that it makes the policy careful, and its long answers longer.

How often an answer is right needs no sampling: it is the product of the probabilities of the worked answer's tokens.

``python -m april.launch.quickstart.tiny FOLDER`` trains in a process of its own and writes a Hugging Face folder.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from april.launch.quickstart import cache, characters, tasks

if TYPE_CHECKING:
    from torch import Tensor

THREADS = 2
"""Waiting threads must sleep (OMP_WAIT_POLICY=PASSIVE): spinning ones make a step 40 times longer on a busy machine."""
IGNORED = -100
"""Label of tokens that are not learned: the prompt and the padding."""


@dataclass(frozen=True, slots=True)
class TinyRecipe:
    """All that decides what the policy becomes. Tokens are counted with padding; rates are those of the steady part."""

    seed: int = 0
    hidden: int = 192
    ffn: int = 512
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    rope_theta: float = 10_000.0
    tokens_per_step: int = 1024
    pool: int = 600
    matrix_rate: float = 4e-3
    vector_rate: float = 4e-3
    weight_decay: float = 0.01
    warm_up: int = 20
    steady: int = 280
    steps: int = 420
    slips: float = 0.15
    gives_up: float = 0.15
    probe: int = 256
    probe_every: int = 20

    def key(self) -> str:
        """The cache key: this, the libraries' versions and the source files that it depends on."""
        sources = [Path(module.__file__ or "") for module in (sys.modules[__name__], characters, tasks)]
        return cache.key(asdict(self), ["torch", "transformers", "reasoning_gym"], sources)

    def flaws(self) -> dict[tasks.Flaw, float]:
        """How often the teacher does what at a step."""
        careful = 1 - self.slips - self.gives_up
        return {tasks.Flaw.NONE: careful, tasks.Flaw.SLIPS: self.slips, tasks.Flaw.GIVES_UP: self.gives_up}

    def rate(self, step: int) -> float:
        """The schedule, in parts of the highest rate: warm-up, steady, then linear towards 0."""
        return min(1.0, (step + 1) / self.warm_up, max(0.05, (self.steps - step) / (self.steps - self.steady)))


Example = tuple[list[int], int]
"""Ids of prompt and answer, and the length of the prompt."""


def example(task: tasks.Task, flaws: Iterator[tasks.Flaw] | None = None) -> Example:
    """A task as the policy sees it, with the end token; worked with the teacher's ``flaws``."""
    assert isinstance(task.prompt, str)
    prompt = characters.encode(task.prompt)
    return [*prompt, *characters.encode(task.worked(flaws)), characters.EOS_ID], len(prompt)


def batches(recipe: TinyRecipe) -> Iterator[list[Example]]:
    """Endless batches of examples of similar length, at most ``tokens_per_step`` with padding, in random order."""
    source = random.Random(recipe.seed)
    kinds, shares = zip(*recipe.flaws().items(), strict=True)
    flaws = (source.choices(kinds, shares)[0] for _ in itertools.count())
    for first in itertools.count(0, recipe.pool):
        pool = [example(task, flaws) for task in tasks.sums(recipe.pool, recipe.seed, tasks.Split.PRETRAIN, first)]
        packed = packs(pool, recipe.tokens_per_step)
        source.shuffle(packed)
        yield from packed


def packs(examples: list[Example], tokens: int) -> list[list[Example]]:
    """Examples sorted by length and cut into batches of at most ``tokens`` with padding."""
    made: list[list[Example]] = [[]]
    for item in sorted(examples, key=lambda item: len(item[0])):
        if made[-1] and (len(made[-1]) + 1) * len(item[0]) > tokens:
            made.append([])
        made[-1].append(item)
    return made


def log_probs(model: Any, batch: list[Example]) -> Tensor:
    """Log-probabilities of the answers' tokens, [examples, longest - 1]; 0 where there is nothing to learn."""
    import torch

    longest = max(len(ids) for ids, _ in batch)
    inputs = torch.full((len(batch), longest), characters.PAD_ID)
    labels = torch.full((len(batch), longest), IGNORED)
    for row, (ids, prompt) in enumerate(batch):
        inputs[row, : len(ids)] = torch.tensor(ids)
        labels[row, prompt : len(ids)] = torch.tensor(ids[prompt:])
    # Padding is on the right of causal attention: no mask is needed.
    logits = model(input_ids=inputs).logits[:, :-1]
    wanted = labels[:, 1:]
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), wanted, ignore_index=IGNORED, reduction="none")
    return -losses


def probability_of_worked(model: Any, examples: list[Example], tokens: int) -> float:
    """Mean probability that the policy writes the worked answer, token for token, at temperature 1."""
    import torch

    with torch.no_grad():
        parts = [log_probs(model, batch).sum(dim=1).exp() for batch in packs(examples, tokens)]
    return float(torch.cat(parts).mean())


def train(recipe: TinyRecipe, folder: Path) -> float:
    """Train and save; returns the reached probability of a worked answer."""
    import torch
    from tqdm import tqdm

    torch.manual_seed(recipe.seed)
    model = build(recipe)
    probe = [example(task) for task in tasks.sums(recipe.probe, recipe.seed, tasks.Split.PROBE)]
    optimizers = optimizers_of(model, recipe)
    interval = 0.1 if sys.stderr.isatty() else 15.0
    with tqdm(total=recipe.steps, desc="pre-training", unit="step", mininterval=interval) as bar:
        for step, batch in enumerate(itertools.islice(batches(recipe), recipe.steps), start=1):
            learn(model, optimizers, batch, recipe.rate(step - 1))
            bar.update()
            if step % recipe.probe_every == 0:
                reached = probability_of_worked(model, probe, 4 * recipe.tokens_per_step)
                bar.set_postfix_str(f"right {reached:.2f}", refresh=False)
    save(model, recipe, reached, folder)
    return reached


def learn(model: Any, optimizers: list[Any], batch: list[Example], rate: float) -> None:
    """One step; ``rate`` is a part of each optimizer's own rate."""
    import torch

    chosen = log_probs(model, batch)
    loss = -chosen.sum() / sum(len(ids) - prompt for ids, prompt in batch)
    model.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * optimizer.defaults["lr"]
        optimizer.step()


def optimizers_of(model: Any, recipe: TinyRecipe) -> list[Any]:
    """Muon for the layers' matrices (three times fewer steps than Adam needs here), Adam for embeddings and norms."""
    import torch

    named = list(model.named_parameters())
    matrices = [value for name, value in named if value.ndim == 2 and "embed" not in name]
    others = [value for name, value in named if value.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(
            matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(others, lr=recipe.vector_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def build(recipe: TinyRecipe) -> Any:
    """The untrained model (float32)."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(characters.VOCABULARY),
            hidden_size=recipe.hidden,
            intermediate_size=recipe.ffn,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.kv_heads,
            head_dim=recipe.hidden // recipe.heads,
            max_position_embeddings=1024,
            rope_parameters={"rope_type": "default", "rope_theta": recipe.rope_theta},
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=characters.EOS_ID,
            pad_token_id=characters.PAD_ID,
        )
    )


def save(model: Any, recipe: TinyRecipe, reached: float, folder: Path) -> None:
    """Write the Hugging Face folder, with the recipe beside it."""
    model.save_pretrained(folder)
    characters.save_tokenizer(folder)
    told = {"recipe": asdict(recipe), "probability_of_worked": reached}
    (folder / "recipe.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    from april.launch.quickstart.libraries import prepare

    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the parent tells of an interruption
    prepare()
    train(TinyRecipe(), Path(sys.argv[1]))
