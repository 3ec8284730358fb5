"""Every preset with every hardware, mode and algorithm: what becomes of it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from april.errors import UsageError
from april.launch.presets.catalog import Catalog
from april.launch.presets.files import Flag
from april.launch.run import flags, rules
from april.launch.run.resolve import MODES, Launch, Places, Request, resolve

CATALOG = Catalog()
PLACES = Places("/models", "/data", "/out", {"smollm2": "/cache/smollm2"})
ALL = [CATALOG.names(kind) for kind in ("models", "data", "hardware")]
ALGORITHMS = CATALOG.names("algorithms")


def launch(
    preset: str,
    mode: str = "april",
    hardware: str | None = None,
    algorithm: str | None = None,
    nodes: int = 1,
    asynchronous: bool = False,
    host: str = "slime",
    sets: tuple[str, ...] = (),
    extra: tuple[str, ...] = (),
) -> Launch:
    request = Request(preset, PLACES, mode, hardware, algorithm, nodes, asynchronous, host, sets, extra)
    return resolve(request, CATALOG)


def test_every_combination_resolves_and_contradicts_nothing() -> None:
    count = 0
    for model, data, hardware in itertools.product(*ALL):
        for mode, algorithm in itertools.product(MODES, ALGORITHMS):
            run = launch(f"{model}-{data}", mode, hardware, algorithm)
            rules.check(run)
            words = run.train_flags()
            assert not any("{" in word for word in words), words
            assert run.environment["NCCL_GRAPH_REGISTER"] == "0"
            assert ("over-sampling-batch-size" in run.flags) == MODES[mode].april
            assert words[words.index("--april") + 1] == ("on" if MODES[mode].april else "off")
            assert ("--specrollout" in words) == MODES[mode].spec
            assert run.flags["num-layers"] == run.architecture["num_hidden_layers"]
            count += 1
    assert count == 9 * 6 * 7 * 4 * 4


@pytest.mark.parametrize("nodes", [2, 4])
def test_nodes_and_the_asynchronous_loop_fit_their_devices(nodes: int) -> None:
    for model, hardware in itertools.product(ALL[0], ALL[2]):
        for asynchronous in (False, True):
            run = launch(f"{model}-deepmath", "april", hardware, nodes=nodes, asynchronous=asynchronous)
            rules.check(run)
            assert rules.devices(run) <= nodes * run.gpus_per_node
            assert not (asynchronous and run.flags.get("colocate"))


def test_the_papers_in_full() -> None:
    april = launch("qwen3-4b-dapo-math").flags
    assert (april["over-sampling-batch-size"], april["global-batch-size"], april["april-staleness-cap"]) == (64, 256, 5)
    assert (april["eps-clip"], april["eps-clip-high"], april["kl-loss-coef"], april["rm-type"]) == (
        0.2,
        0.28,
        0.0,
        "deepscaler",
    )
    assert launch("qwen3-4b-dapo-math", algorithm="gspo").flags["eps-clip"] == 0.2
    assert launch("qwen3-8b-dapo-math", algorithm="gspo").flags["eps-clip"] == 3e-4
    efficient = launch("qwen2.5-14b-simplerl-hard", mode="spec")
    assert (efficient.flags["global-batch-size"], efficient.flags["sglang-mem-fraction-static"]) == (1024, 0.7)
    assert (efficient.flags["kl-loss-coef"], efficient.flags["eps-clip-high"]) == (1e-4, 0.2)
    assert (efficient.flags["specrollout-gamma"], efficient.flags["rm-type"]) == ("ladder", "math")
    assert efficient.hardware.name == "a100x8"
    assert launch("llama3.1-8b-simplerl-medium").flags["kl-loss-coef"] == 0.01


def test_dynamic_sampling_is_the_hosts_own() -> None:
    for host in ("slime", "miles"):
        path = launch("qwen3-4b-deepmath", algorithm="dapo", host=host).flags["dynamic-sampling-filter-path"]
        assert str(path).startswith(f"{host}.rollout.filter_hub.")


def test_environment_of_the_vendors() -> None:
    amd = launch("qwen3-4b-deepmath", hardware="mi325x-8").environment
    assert amd["RAY_EXPERIMENTAL_NOSET_HIP_VISIBLE_DEVICES"] == "1"
    assert amd["HIP_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    nvidia = launch("qwen3-4b-deepmath", hardware="h100x8", sets=("env.NCCL_NVLS_ENABLE=0", "env.X=null")).environment
    assert (nvidia["CUDA_DEVICE_MAX_CONNECTIONS"], nvidia["NCCL_NVLS_ENABLE"]) == ("1", "0")
    assert not {"HIP_VISIBLE_DEVICES", "X"}.intersection(nvidia)


def test_the_users_settings_win_and_the_rest_follows() -> None:
    run = launch(
        "qwen3-4b-dapo-math",
        sets=("rollout-batch-size=16", "lr=2e-6", "sequence-parallel=false", "hf-checkpoint=/else", "lr-warmup=null"),
        extra=("--lr", "3e-6", "--eval-prompt-data", "aime", "/a", "gpqa", "/b", "--colocate", "--seed=7"),
    )
    assert (run.flags["global-batch-size"], run.flags["over-sampling-batch-size"]) == (128, 32)
    assert (run.flags["lr"], run.flags["ref-load"], run.flags["seed"]) == ("3e-6", "/else", "7")
    assert run.flags["eval-prompt-data"] == ["aime", "/a", "gpqa", "/b"]
    assert not {"sequence-parallel", "lr-warmup"}.intersection(run.flags)
    assert run.train_flags().count("--lr") == 1


def test_a_model_that_is_made_here_and_one_that_is_not() -> None:
    assert launch("smollm2-arithmetic").flags["hf-checkpoint"] == "/cache/smollm2"
    assert launch("qwen3-8b-arithmetic").flags["hf-checkpoint"] == "/models/Qwen3-8B"
    assert launch("qwen3-8b-arithmetic").flags["prompt-data"] == "/out/prompts.jsonl"
    assert "rm-type" not in launch("smollm2-arithmetic").flags


def test_architectures_as_slime_has_them() -> None:
    """Facts of slime's scripts/models and of the models' config.json."""
    found = {model: launch(f"{model}-deepmath").flags for model in ALL[0]}
    shape = ("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "num-query-groups")
    assert {model: tuple(some[name] for name in shape) for model, some in found.items()} == {
        "qwen3-0.6b": (28, 1024, 3072, 16, 8),
        "qwen3-1.7b": (28, 2048, 6144, 16, 8),
        "qwen3-4b": (36, 2560, 9728, 32, 8),
        "qwen3-8b": (36, 4096, 12288, 32, 8),
        "qwen2.5-7b": (28, 3584, 18944, 28, 4),
        "qwen2.5-14b": (48, 5120, 13824, 40, 8),
        "llama3.1-8b": (32, 4096, 14336, 32, 8),
        "deepseek-r1-distill-qwen-1.5b": (28, 1536, 8960, 12, 2),
        "smollm2": (30, 576, 1536, 9, 3),
    }
    tied = {model for model, some in found.items() if "untie-embeddings-and-output-weights" not in some}
    assert tied == {"qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "smollm2"}
    assert {model for model, some in found.items() if "add-qkv-bias" in some} == {
        "qwen2.5-7b",
        "qwen2.5-14b",
        "deepseek-r1-distill-qwen-1.5b",
    }
    assert {model for model, some in found.items() if "qk-layernorm" in some} == set(ALL[0][-5:-1])
    assert found["llama3.1-8b"]["rope-scaling-factor"] == "8.0"
    assert [found[model]["rotary-base"] for model in ALL[0]] == [
        10_000,
        500_000,
        *[1_000_000] * 6,
        100_000,
    ]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"mode": "fast"}, "--mode fast: use sync, april, spec, april+spec"),
        ({"nodes": 0}, "--nodes 0: at least 1"),
        ({"sets": ("lr",)}, "--set lr: give KEY=VALUE"),
        ({"extra": ("lr", "1")}, "'lr' after -- belongs to no flag"),
        ({"sets": ("rollout-batch-size=many",)}, "--rollout-batch-size is many: it must be a whole number"),
        ({"algorithm": "ppo"}, "unknown algorithm 'ppo': "),
        ({"hardware": "h100"}, "unknown hardware 'h100': did you mean h100x8?"),
    ],
)
def test_what_cannot_be_read(change: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError) as error:
        launch("qwen3-4b-deepmath", **change)  # type: ignore[arg-type]
    assert says in str(error.value)


NAMES = st.from_regex(r"[a-z]+(-[a-z0-9]+)?", fullmatch=True)
TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1).filter(
    lambda text: not text.startswith("--")
)
VALUES = st.just(True) | TEXTS | st.lists(TEXTS, min_size=2, max_size=3)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
def test_words_and_their_mapping_are_the_same_thing(given_flags: dict[str, Flag]) -> None:
    assert flags.parse(flags.words(given_flags)) == given_flags


def test_a_setting_is_yaml() -> None:
    found, environment = flags.settings(
        ["a=true", "b=null", "c=[x, 1]", 'd={"k": 1}', "--e=1", "f=a=b", "env.N=1", "g=:"]
    )
    assert found == {"a": True, "b": None, "c": ["x", 1], "d": '{"k": 1}', "e": 1, "f": "a=b", "g": ":"}
    assert environment == {"N": "1"}
