"""tf.train.Example: the message in which TensorFlow, and DALI, keep a labelled image.

Built from its published description, so that neither TensorFlow nor a protobuf compiler is
needed: https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/example/feature.proto
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from google.protobuf import (  # type: ignore[import-untyped]
    descriptor_pb2,
    descriptor_pool,
    message_factory,
)
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from raysuite.errors import DataError

IMAGE = "image/encoded"
LABEL = "image/class/label"
"""Counted from 0 here; from 1 in TensorFlow's ImageNet files."""

_PACKAGE = "raysuite.tfexample"  # not "tensorflow", which TensorFlow registers itself
_Field = descriptor_pb2.FieldDescriptorProto


def _example_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="raysuite/tfexample.proto", package=_PACKAGE, syntax="proto3"
    )

    def message(name: str) -> Any:
        return file.message_type.add(name=name)

    def field(
        owner: Any, name: str, number: int, kind: int, of: str = "", many: bool = False
    ) -> Any:
        label = _Field.LABEL_REPEATED if many else _Field.LABEL_OPTIONAL
        type_name = f".{_PACKAGE}.{of}" if of else None
        return owner.field.add(
            name=name, number=number, type=kind, type_name=type_name, label=label
        )

    field(message("BytesList"), "value", 1, _Field.TYPE_BYTES, many=True)
    field(message("FloatList"), "value", 1, _Field.TYPE_FLOAT, many=True)
    field(message("Int64List"), "value", 1, _Field.TYPE_INT64, many=True)
    feature = message("Feature")
    feature.oneof_decl.add(name="kind")
    for number, kind in enumerate(("Bytes", "Float", "Int64"), start=1):
        name = f"{kind.lower()}_list"
        field(feature, name, number, _Field.TYPE_MESSAGE, of=f"{kind}List").oneof_index = 0
    features = message("Features")
    entry = features.nested_type.add(name="FeatureEntry")  # a map<string, Feature>
    entry.options.map_entry = True
    field(entry, "key", 1, _Field.TYPE_STRING)
    field(entry, "value", 2, _Field.TYPE_MESSAGE, of="Feature")
    field(features, "feature", 1, _Field.TYPE_MESSAGE, of="Features.FeatureEntry", many=True)
    field(message("Example"), "features", 1, _Field.TYPE_MESSAGE, of="Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


_Example = _example_class()


def encode_example(
    image: bytes,
    label: int,
    image_name: str = IMAGE,
    label_name: str = LABEL,
    more: Mapping[str, bytes | int] = MappingProxyType({}),
) -> bytes:
    """An Example with an encoded image and its label, under the names of these features, and
    `more` features."""
    example = _Example()
    example.features.feature[image_name].bytes_list.value.append(image)
    example.features.feature[label_name].int64_list.value.append(label)
    for name, value in more.items():
        feature = example.features.feature[name]
        (feature.int64_list if isinstance(value, int) else feature.bytes_list).value.append(value)
    return bytes(example.SerializeToString(deterministic=True))


def decode_example(
    data: bytes, place: str, image_name: str = IMAGE, label_name: str = LABEL
) -> tuple[bytes, int]:
    """The encoded image and the label of an Example, from the features of these names.

    Raises DataError, naming `place`, where `data` is no Example or lacks one of the two.
    """
    example = _Example()
    try:
        example.ParseFromString(data)
    except DecodeError as error:
        raise DataError(f"{place}: not a tf.train.Example ({error})") from error
    feature = example.features.feature
    present = sorted(feature)
    images, labels = feature[image_name].bytes_list.value, feature[label_name].int64_list.value
    if len(images) != 1 or len(labels) != 1:
        raise DataError(
            f"{place}: the Example lacks {image_name} (one image) or {label_name} (one integer); "
            f"it has {', '.join(present) or 'no features'}; name its features in data.features"
        )
    return images[0], labels[0]
