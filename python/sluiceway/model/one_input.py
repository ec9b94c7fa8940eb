"""Groups weights that read the same input, so that work on the input can be shared."""

from __future__ import annotations

from collections.abc import Iterable

from sluiceway.model.targets import CompressedWeight

# Names that models of transformers give to layers with a common input.
_BESIDE = (
    ("q_proj", "k_proj", "v_proj"),
    ("query", "key", "value"),
    ("wq", "wk", "wv"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)


def first_of_input(weights: Iterable[CompressedWeight]) -> dict[str, str]:
    """Map each weight's name to the name of the first weight with the same input.

    A weight whose input no other weight reads is left out. Layers count as having the same input by
    their names; if their inputs differ after all, results stay correct.
    """
    groups: dict[tuple[str, int, int], list[str]] = {}
    for weight in weights:
        parent, _, layer = weight.name.removesuffix(".weight").rpartition(".")
        for number, names in enumerate(_BESIDE):
            if layer in names and not weight.is_batch and not weight.is_embedding:
                groups.setdefault((parent, number, weight.shape[1]), []).append(weight.name)
    return {name: names[0] for names in groups.values() if len(names) > 1 for name in names}
