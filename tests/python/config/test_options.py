"""Options are declared once: what a constructor, a config, a plan and the compiled module see."""

from __future__ import annotations

import inspect
import re

import pytest
import sluiceway as sw
import torch  # noqa: F401 - the compiled module needs its libraries.
from sluiceway import _core
from sluiceway.config.codec_names import OFFERED
from sluiceway.config.engines.subspace import SubspaceOptions, SubspaceSection
from sluiceway.config.file import check_config
from sluiceway.config.options import Options, option
from sluiceway.optim.offload.arguments import OffloadArguments
from sluiceway.optim.subspace.arguments import SubspaceArguments, weight_keywords
from small_models import make

OPTIMIZERS = {sw.SubspaceAdamW: SubspaceArguments, sw.OffloadAdamW: OffloadArguments}


def public(options: type[Options]) -> list[str]:
    return [name for name, field in options.model_fields.items() if field.alias is None]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_signature_has_the_first_options_with_their_defaults(optimizer):
    parameters = inspect.signature(optimizer).parameters
    assert list(parameters)[:6] == ["model", "lr", "betas", "eps", "weight_decay", "max_norm"]
    *first, last = list(parameters.values())[7:]
    assert 10 <= len(first) <= 14
    for one in first:
        assert one.kind is inspect.Parameter.KEYWORD_ONLY
        assert one.default == OPTIMIZERS[optimizer].model_fields[one.name].default
    assert last.kind is inspect.Parameter.VAR_KEYWORD
    assert not any(name.startswith("_") for name in parameters)
    assert list(inspect.signature(optimizer.__init__).parameters)[1:] == list(parameters)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_help_names_every_option_and_describes_it_here_or_there(optimizer):
    text, all_of_them = inspect.getdoc(optimizer), inspect.getdoc(OPTIMIZERS[optimizer])
    first = set(inspect.signature(optimizer).parameters)
    for name in public(OPTIMIZERS[optimizer]):
        described = re.compile(rf"^(.*, )?{name}(, .*)?( :|$)", re.MULTILINE)
        assert described.search(all_of_them), name
        if name in first:
            assert described.search(text), name
        else:
            assert re.search(rf"\b{name}\b", text[text.index("**options") :]), name
    assert "{options}" not in text


def test_help_has_values_and_sentences():
    text = inspect.getdoc(SubspaceArguments)
    assert (
        'residual : {"auto", "factored", "sign", "none"}, default "auto"\n    Use of the part'
        in text
    )
    assert "every : int, default 0\n    Steps between" in inspect.getdoc(sw.Refresh)


@pytest.mark.parametrize(
    ("make_one", "words"),
    [
        (
            lambda: sw.SubspaceAdamW(make(), codec="block_random", codek="svd"),
            "'codek', did you mean 'codec'",
        ),
        (lambda: sw.SubspaceAdamW(make(), codec="block_random", learning=1.0), "'learning'"),
        (lambda: sw.SubspaceAdamW(make(), codec="block_random", pin=(0, 1)), "'pin'"),
        (lambda: sw.Link(1, 1, latency=3), "'latency', did you mean 'latency_us'"),
        (lambda: sw.Link(1), "h2d_gbps"),
        (lambda: sw.Budget(1, 2, 3, 4, 5), "too many positional"),
        (lambda: sw.Refresh(2, every=2), "every"),
    ],
)
def test_a_keyword_that_is_none_is_a_type_error_with_the_nearest_one(make_one, words):
    with pytest.raises(TypeError, match=words):
        make_one()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"wire": "fp8"}, "wire is 'fp8', expected bf16, fp32 or int8"),
        ({"schedule": "fifo"}, "schedule is 'fifo', expected edf, fcfs, paper or barrier"),
        ({"embeddings": "whole"}, "embeddings is 'whole', expected trained, identity or frozen"),
        ({"accumulate": 0}, "accumulate is 0, expected auto or at least 1"),
        ({"seed": True}, "seed is true, expected a number"),
        ({"link": 12.0}, r"link is 12\.0, expected a sluiceway.Link"),
        ({"loss_scale": "static"}, "loss_scale is 'static', expected dynamic or a valid number"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_what_could(arguments, words):
    with pytest.raises(sw.InvalidArgument, match=f"^SubspaceAdamW: {words}"):
        sw.SubspaceAdamW(make(), **arguments)


def test_values_from_python_are_not_converted_as_those_of_a_file_are():
    with pytest.raises(
        sw.InvalidArgument, match=r"ratio is '0\.5', expected auto or a valid number"
    ):
        sw.SubspaceAdamW(make(), codec="block_random", ratio="0.5")
    tree = {"model": {"path": "m"}, "data": {"train": ["pydoc"]}}
    config = check_config({**tree, "engine": {"ratio": "5e-1"}})  # YAML 1.1 reads it as text.
    assert config.engine.ratio == 0.5


def test_positions_of_a_refresh_are_where_they_were():
    def closure():
        raise AssertionError

    refresh = sw.Refresh(3, 0.5, "closure", closure, 7, "keep")
    assert refresh == sw.Refresh(
        every=3, threshold=0.5, source="closure", closure=closure, learn_steps=7, transport="keep"
    )
    assert (refresh.learn_rate, refresh.beta, refresh.init) == (0.1, 1e-4, "sign")
    assert str(sw.Link(1, 2)) == "Link(d2h_gbps=1.0, h2d_gbps=2.0, latency_us=0.0)"


def test_the_section_of_a_config_is_the_options_and_its_kind():
    assert set(SubspaceSection.model_fields) == {*SubspaceOptions.model_fields, "kind"}
    assert issubclass(SubspaceSection, SubspaceOptions)
    for name, field in SubspaceOptions.model_fields.items():
        assert SubspaceSection.model_fields[name].default == field.default


def test_codecs_of_a_config_are_those_that_the_compiled_module_offers():
    with pytest.raises(sw.InvalidArgument) as refused:
        sw.SubspaceAdamW(make(), codec="nonsense")
    offered = str(refused.value).partition("expected one of ")[2]
    assert offered.split() == ["auto", *OFFERED]


def test_a_codec_that_is_none_is_told_apart_before_torch_is_loaded():
    tree = {"model": {"path": "m"}, "data": {"train": ["pydoc"]}, "engine": {"codec": "svdd"}}
    words = r"run\.yaml:4: engine\.codec is 'svdd', expected 'auto', .*; did you mean svd\?"
    with pytest.raises(sw.InvalidArgument, match=words):
        check_config(tree, {("engine", "codec"): "run.yaml:4"})


def test_the_compiled_module_takes_every_option_of_a_weight_and_no_other():
    keywords = weight_keywords(SubspaceSection(), seed=0)
    plan = {"m": 64, "n": 64, "weight_dtype": "fp32", "speculative": False, "on_host": True}
    for name in keywords:
        rest = {key: value for key, value in keywords.items() if key != name}
        with pytest.raises(sw.InvalidArgument, match=f"{name} is missing"):
            _core.weight_plan(**plan, **rest)
    with pytest.raises(sw.InvalidArgument, match="WeightSpec: rnak is no option; keywords"):
        _core.weight_plan(**plan, **keywords, rnak=3)


class _Receiving(Options):
    here: int = option(1, "Stays in Python.")
    there: int = option(2, "Goes to the engine.", to=["engine"], in_state=True)
    both: int = option(3, "", alias="_both", to=["engine", "weight"])


def test_an_option_says_who_is_told_of_it():
    options = _Receiving(_both=4)
    assert options.keywords_for("engine") == {"there": 2, "both": 4}
    assert options.keywords_for("weight") == {"both": 4}
    assert _Receiving.names(in_state=True) == ["there"]
    assert "Stays in Python." in _Receiving.__doc__
    assert "both" not in _Receiving.__doc__  # It has no description.
