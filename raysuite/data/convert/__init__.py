"""Image folders -> TFRecord shards with their indices, as TensorFlow's and DALI's examples lie."""

from raysuite.data.convert.planning import Conversion, Options, plan_conversion
from raysuite.data.convert.run import Summary, convert
from raysuite.data.convert.shard import Bad

__all__ = ["Bad", "Conversion", "Options", "Summary", "convert", "plan_conversion"]
