"""Which weights of a model read one input, and so may share what is done with it."""

from __future__ import annotations

from collections.abc import Iterable

from sluiceway.model.targets import CompressedWeight

# Names of layers beside each other, as models of transformers call them.
_BESIDE = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("wq", "wk", "wv"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)


def first_of_input(weights: Iterable[CompressedWeight]) -> dict[str, str]:
    """Map names of weights to that of the first that reads the same input.

    A weight is left out where no other one does. Nothing goes wrong where two are named so and read
    different inputs.
    """
    groups: dict[tuple[str, int, int], list[str]] = {}
    for weight in weights:
        parent, _, layer = weight.name.removesuffix(".weight").rpartition(".")
        for number, names in enumerate(_BESIDE):
            if layer in names and not weight.is_batch and not weight.identity:
                groups.setdefault((parent, number, weight.shape[1]), []).append(weight.name)
    return {name: names[0] for names in groups.values() if len(names) > 1 for name in names}
