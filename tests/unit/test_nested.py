"""Tensors within tuples and dictionaries, by hand."""

from __future__ import annotations

import torch

from raysuite.nested import called, leaves, mapped, rebuilt, unpadded


def test_leaves_are_in_order_and_a_copy_takes_others_in_this_order() -> None:
    value = {"a": [1, (2, 3)], "b": {"c": "4"}, "d": ()}
    assert [*leaves(value)] == [1, 2, 3, "4"]
    assert rebuilt(value, iter("wxyz")) == {"a": ("w", ("x", "y")), "b": {"c": "z"}, "d": ()}


def test_only_tensors_are_mapped() -> None:
    found = mapped({"a": [torch.ones(2), 3], "b": "text"}, lambda each: each.sum().item())
    assert found == {"a": (2.0, 3), "b": "text"}


def test_padding_is_removed_from_each_tensor_with_samples_and_numbers_become_fp32() -> None:
    batch = (torch.arange(6.0, dtype=torch.bfloat16).reshape(3, 2), torch.arange(3), torch.ones(()))
    logits, labels, loss = unpadded(batch, 2)
    assert (logits.dtype, logits.tolist()) == (torch.float32, [[0.0, 1.0], [2.0, 3.0]])
    assert (labels.dtype, labels.tolist()) == (torch.int64, [0, 1])
    assert loss.item() == 1.0


def test_a_tuple_is_positional_and_a_dictionary_is_keywords() -> None:
    def network(*words: object, **options: object) -> tuple[object, object]:
        return words, options

    assert called(network, (1, 2)) == ((1, 2), {})
    assert called(network, {"x": 1}) == ((), {"x": 1})
    assert called(network, [1, 2]) == (([1, 2],), {})
