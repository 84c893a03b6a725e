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

from fedrdma_fate.fate.shapes import is_shape, is_size

_MAX_CODE_CHARACTERS = 100  # of the name of a kind or device: what is refused with it repeats it
_MAX_INDEX = 2**31  # of a device


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
# By type first: what a stream has made may say of itself that it is equal to anything. And its text may have no end: an
# enumeration that is called with a list puts that into its error, and lists can hold one another twice and twice again.


def _kinds(values: Iterable[Any]) -> list[type]:
    return [type(value) for value in values]


def _code(value: object) -> bool:
    return type(value) is str and len(value) <= _MAX_CODE_CHARACTERS


def _block_type(arguments: tuple[Any, ...]) -> bool:
    """The value of a member; with more arguments, the call would make another enumeration."""
    return len(arguments) == 1 and _code(arguments[0])


def _device_of_fate(arguments: tuple[Any, ...]) -> bool:
    return len(arguments) == 1 and type(arguments[0]) is tuple and len(arguments[0]) == 2 and _device(arguments[0])


def _bounds(arguments: tuple[Any, ...]) -> bool:
    """Of a slice; those within slices are freed one within the other, until the stack has no more room."""
    return len(arguments) == 3 and all(
        bound is None or (type(bound) is int and is_size(abs(bound))) for bound in arguments
    )


def _no_argument(arguments: tuple[Any, ...]) -> bool:
    return not arguments


def _sizes(arguments: tuple[Any, ...]) -> bool:
    return len(arguments) == 1 and type(arguments[0]) is tuple and all(map(is_size, arguments[0]))


def _device(arguments: tuple[Any, ...]) -> bool:
    if _kinds(arguments) not in ([str], [str, int]) or not _code(arguments[0]):
        return False
    return all(-1 <= index < _MAX_INDEX for index in arguments[1:])


def _empty_array(arguments: tuple[Any, ...]) -> bool:
    import numpy as np

    if len(arguments) != 3 or arguments[0] is not np.ndarray or _kinds(arguments[1:]) != [tuple, bytes]:
        return False
    return _kinds(arguments[1]) == [int] and arguments[1:] == ((0,), b"b")


_UNFILLED = "V7"
"""The dtype of an array that has got no state yet: one that no array has afterwards, so that none is filled twice."""


def unfilled_array(_kind: type, _shape: tuple[int, ...], _code: bytes) -> Any:
    """Instead of NumPy's `_reconstruct`, called only with what `_empty_array` is true of."""
    import numpy as np

    return np.empty(0, _UNFILLED)


def is_unfilled(array: Any) -> bool:
    """Whether an array was made by `unfilled_array`, and nothing was done with it."""
    unfilled: bool = array.shape == (0,) and array.dtype == _UNFILLED
    return unfilled


def are_items(items: object, shape: tuple[int, ...]) -> bool:
    """Whether an array of objects of this shape may have these.

    No arrays of objects, nor such as may become some: they are freed one within the other, until the stack has no more
    room.
    """
    import numpy as np

    if type(items) is not list or len(items) != math.prod(shape):
        return False
    return np.ndarray not in set(map(type, items)) or not any(
        type(item) is np.ndarray and item.dtype.kind in "OV" for item in items
    )


def _array_of_objects(array: Any, state: Any) -> bool:
    """Only arrays of objects are pickled, all others are segments; NumPy does not compare shape and list."""
    import numpy as np

    if not is_unfilled(array) or type(state) is not tuple or len(state) != 5:
        return False
    version, shape, dtype, in_fortran_order, items = state
    return (
        (type(version), version, type(in_fortran_order)) == (int, 1, bool)
        and isinstance(dtype, np.dtype)
        and dtype == np.dtype(object)
        and type(shape) is tuple
        and is_shape(shape)
        and are_items(items, shape)
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


_SERIES_STATE = frozenset({"_mgr", "_typ", "_metadata", "attrs", "_flags", "_name", "name"})


def _series(_series: Any, state: Any) -> bool:
    """What pandas pickles of one; it would set whatever else stands there, by its own setters."""
    if type(state) is not dict or not all(type(key) is str for key in state) or not state.keys() <= _SERIES_STATE:
        return False
    kind, flags = state.get("_typ"), state.get("_flags")
    return (type(kind), kind) == (str, "series") and type(flags) is dict and _kinds(flags.values()) == [bool]


def _block_manager(_manager: Any, state: Any) -> bool:
    """What pandas pickles of one: it would make an index of any axis, sorting and comparing what is in there."""
    import numpy as np
    from pandas.core.indexes.base import Index

    if type(state) is not tuple or len(state) != 4 or type(state[3]) is not dict:
        return False
    described = state[3].get("0.14.1")
    if type(described) is not dict or _kinds(map(described.get, ("axes", "blocks"))) != [list, list]:
        return False
    axes, blocks = described["axes"], described["blocks"]
    return _kinds(axes) == [Index] and all(
        type(block) is dict
        and type(block.get("values")) is np.ndarray
        and type(block.get("mgr_locs")) in (slice, np.ndarray)
        for block in blocks
    )


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
    Name("fate.arch.dataframe.manager.block_manager", "BlockType", Use.CALL, _block_type),
    *_names(Use.INSTANCE, "fate.arch.dataframe.manager.data_manager", "DataManager"),
    *_names(Use.INSTANCE, "fate.arch.dataframe.manager.schema_manager", "Schema", "SchemaManager"),
)

_PANDAS = (
    # schemas of data frames, and series of metrics and masks (selection, binning)
    Name("builtins", "slice", Use.CALL, _bounds),
    Name("pandas.core.series", "Series", Use.INSTANCE, check_state=_series),
    Name("pandas.core.internals.managers", "SingleBlockManager", Use.INSTANCE, check_state=_block_manager),
    *_names(Use.NONE, "pandas.core.indexes.base", "Index"),
    Name("pandas.core.indexes.base", "_new_Index", Use.CALL, _index_of_labels),
    Name("numpy.core.multiarray", "_reconstruct", Use.CALL, _empty_array, stand_in=unfilled_array),
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
    Name("fate.arch.unify._infra_def", "device", Use.CALL, _device_of_fate),
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
