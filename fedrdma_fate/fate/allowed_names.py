"""The names that a received object may use, each an exact pair of module and name, and what may be done with it.

Collected from what FATE 2.2.0's own jobs send: aggregation, coordinated and SSHE regression, SecureBoost, binning,
selection, statistics, Pearson, PSI, neural networks, with Paillier and OU. Everything else that they send is
containers, numbers, text, arrays and tensors, which need no name.

What stands here was judged. None of these, called or filled with whatever a peer likes, imports, evaluates, opens or
unpickles anything, and none ends in foreign memory: where NumPy believes what it is told, the arguments are checked
first. Whoever adds a name asks the same of it. Not to be added, though picklers do write them:
`torch.storage:_load_from_bytes` (unpickles its argument), `torch._utils:_rebuild_tensor_v2` (needs the former; tensors
go as segments), `builtins:getattr` (leads to everything else), `functools:partial`, `numpy:load`.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_MAX_DIMENSIONS = 32  # NumPy's limit


class Use(enum.Flag):
    """What a stream may do with what a name stands for, other than pass it on."""

    NONE = 0
    MAKE = enum.auto()
    """Make instances of it, without initialising them."""
    FILL = enum.auto()
    """Set the state of its instances."""
    CALL = enum.auto()
    """Call it."""
    INSTANCE = MAKE | FILL
    ANY = MAKE | FILL | CALL


@dataclasses.dataclass(frozen=True, slots=True)
class Name:
    """A name, and how it may be used.

    Attributes:
        module: full name of the module.
        name: of an attribute of the module; no dots.
        uses: what may be done with it.
        check_arguments: whether it may be called with these, None for any.
        check_state: whether an instance may be filled with this state, None for any.
        stand_in: what is called instead of what the name stands for, which is not even imported; None for that itself.
    """

    module: str
    name: str
    uses: Use
    check_arguments: Callable[[tuple[Any, ...]], bool] | None = None
    check_state: Callable[[Any, Any], bool] | None = None
    stand_in: Callable[..., Any] | None = None


def _names(uses: Use, module: str, *names: str) -> Iterable[Name]:
    return (Name(module, name, uses) for name in names)


# --- what has to be looked at, argument by argument ---
#
# By type first: what a stream has made may say of itself that it is equal to anything.


def _kinds(values: Iterable[Any]) -> list[type]:
    return [type(value) for value in values]


def _one_argument(arguments: tuple[Any, ...]) -> bool:
    """A member of an enumeration; with more arguments, the call would make another enumeration."""
    return len(arguments) == 1


def _no_argument(arguments: tuple[Any, ...]) -> bool:
    return not arguments


def _sizes(arguments: tuple[Any, ...]) -> bool:
    return len(arguments) == 1 and type(arguments[0]) is tuple and all(type(size) is int for size in arguments[0])


def _device(arguments: tuple[Any, ...]) -> bool:
    return _kinds(arguments) in ([str], [str, int])


def _empty_array(arguments: tuple[Any, ...]) -> bool:
    import numpy as np

    if len(arguments) != 3 or arguments[0] is not np.ndarray or _kinds(arguments[1:]) != [tuple, bytes]:
        return False
    return _kinds(arguments[1]) == [int] and arguments[1:] == ((0,), b"b")


def _array_of_objects(array: Any, state: Any) -> bool:
    """Only arrays of objects are pickled, all others are segments; NumPy does not compare shape and list."""
    import numpy as np

    if array.size or type(state) is not tuple or len(state) != 5:
        return False
    version, shape, dtype, in_fortran_order, items = state
    return (
        (type(version), version, type(in_fortran_order)) == (int, 1, bool)
        and isinstance(dtype, np.dtype)
        and dtype == np.dtype(object)
        and type(shape) is tuple
        and len(shape) <= _MAX_DIMENSIONS
        and all(type(size) is int and size >= 0 for size in shape)
        and type(items) is list
        and len(items) == math.prod(shape)
    )


_DTYPE_CODE = re.compile(r"([biufcOSU])([0-9]{1,9})", re.ASCII)  # no fields, no units
_MAX_TEXT = (2**31 - 1) // 4
"""Characters of an item, four bytes each: NumPy's size of longer ones wraps around, to less than nothing."""


def _dtype_code(arguments: tuple[Any, ...]) -> bool:
    if _kinds(arguments) != [str, bool, bool] or arguments[1:] != (False, True):
        return False
    code = _DTYPE_CODE.fullmatch(arguments[0])
    return code is not None and (code[1] != "U" or int(code[2]) <= _MAX_TEXT)


def _dtype_state(dtype: Any, state: Any) -> bool:
    """NumPy's own state for this dtype, in either byte order: it believes flags, such as that items are no objects."""
    if type(state) is not tuple or not set(_kinds(state)) <= {int, str, type(None)}:
        return False
    if len(state) < 2 or state[1] not in ("<", ">", "|"):
        return False
    same: bool = dtype.newbyteorder(state[1]).__reduce__()[2] == state
    return same


def _index_of_labels(arguments: tuple[Any, ...]) -> bool:
    """An index over an array of labels, as those of columns are."""
    import numpy as np
    from pandas.core.indexes.base import Index

    if len(arguments) != 2 or arguments[0] is not Index or type(arguments[1]) is not dict:
        return False
    keywords = arguments[1]
    named = all(type(key) is str for key in keywords) and keywords.keys() == {"data", "name"}
    return named and type(keywords["data"]) is np.ndarray


# --- the names ---

_FEDERATION = (
    # tables, the context, and the arrays and tensors of FATE's own way, as persistent ids
    *_names(
        Use.INSTANCE,
        "fate.arch.federation.api._serdes",
        "_TablePersistentId",
        "_ContextPersistentId",
        "_TorchSafeTensorPersistentId",
        "_NumpySafeTensorPersistentId",
    ),
    *_names(Use.INSTANCE, "fate.arch.federation.api._table_meta", "TableMeta"),
)

_DATA_FRAMES = (
    # SecureBoost, PSI, statistics
    *_names(Use.INSTANCE, "fate.arch.dataframe._dataframe", "DataFrame"),
    *_names(
        Use.INSTANCE,
        "fate.arch.dataframe.manager.block_manager",
        "BlockManager",
        "BoolBlock",
        "Float32Block",
        "Float64Block",
        "IndexBlock",
        "Int32Block",
        "Int64Block",
        "NPObjectBlock",
        "PHETensorBlock",
    ),
    Name("fate.arch.dataframe.manager.block_manager", "BlockType", Use.CALL, _one_argument),
    *_names(Use.INSTANCE, "fate.arch.dataframe.manager.data_manager", "DataManager"),
    *_names(Use.INSTANCE, "fate.arch.dataframe.manager.schema_manager", "Schema", "SchemaManager"),
)

_PANDAS = (
    # schemas of data frames, and series of metrics and masks (selection, binning)
    Name("builtins", "slice", Use.CALL),
    *_names(Use.INSTANCE, "pandas.core.series", "Series"),
    *_names(Use.INSTANCE, "pandas.core.internals.managers", "SingleBlockManager"),
    *_names(Use.NONE, "pandas.core.indexes.base", "Index"),
    Name("pandas.core.indexes.base", "_new_Index", Use.CALL, _index_of_labels),
    Name("numpy.core.multiarray", "_reconstruct", Use.CALL, _empty_array),
    Name("numpy", "ndarray", Use.FILL, check_state=_array_of_objects),
    Name("numpy", "dtype", Use.CALL | Use.FILL, _dtype_code, _dtype_state),
)

_TENSORS = (
    # distributed and encrypted tensors (regression, Pearson, neural networks)
    *_names(Use.INSTANCE, "fate.arch.tensor.distributed._tensor", "DTensor", "Shardings", "_ShardingShapes"),
    *_names(Use.INSTANCE, "fate.arch.tensor.phe._tensor", "PHETensor", "PHETensorEncoded"),
    *_names(
        Use.INSTANCE,
        "fate.arch.tensor.phe._keypair",
        "PHETensorCipherPublic",
        "PHETensorCoder",
        "PHETensorEncryptor",
    ),
    Name("fate.arch.unify._infra_def", "device", Use.CALL, _one_argument),
    Name("torch", "Size", Use.CALL, _sizes),
    Name("torch", "device", Use.CALL, _device),
    *_names(Use.NONE, "torch", "float16", "float32", "float64", "bfloat16", "int8", "int16", "int32", "int64"),
    *_names(Use.NONE, "torch", "uint8", "bool"),
    # state dictionaries carry an attribute
    Name("collections", "OrderedDict", Use.CALL | Use.FILL, _no_argument),
)

_ENCRYPTION = (
    # public keys, coders and ciphertexts; the evaluators are classes that are passed on as they are
    *_names(Use.INSTANCE, "fate.arch.context._cipher", "PHECipherPublic"),
    *_names(Use.INSTANCE, "fate.arch.protocol.phe.paillier", "PK", "Coder"),
    *_names(Use.NONE, "fate.arch.protocol.phe.paillier", "evaluator"),
    *_names(Use.INSTANCE, "fate.arch.protocol.phe.ou", "PK", "Coder"),
    *_names(Use.NONE, "fate.arch.protocol.phe.ou", "evaluator"),
    *_names(Use.INSTANCE, "fate_utils.paillier", "PK", "Coder", "CiphertextVector", "PlaintextVector"),
    *_names(Use.INSTANCE, "fate_utils.ou", "PK", "Coder", "CiphertextVector", "PlaintextVector"),
)

_TREES = (
    # SecureBoost and binning
    *_names(Use.INSTANCE, "fate.arch.histogram._histogram_distributed", "DistributedHistogram"),
    *_names(Use.INSTANCE, "fate.ml.ensemble.learner.decision_tree.tree_core.decision_tree", "Node"),
)

ALLOWED_NAMES: Mapping[tuple[str, str], Name] = {
    (name.module, name.name): name for name in (*_FEDERATION, *_DATA_FRAMES, *_PANDAS, *_TENSORS, *_ENCRYPTION, *_TREES)
}
"""What every job may use; a job's own `allowed_names` come on top."""
