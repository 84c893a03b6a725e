"""Reads YAML as strictly as the configuration is checked."""

from __future__ import annotations

from typing import Any

import yaml


class _StrictLoader(yaml.SafeLoader):
    """Of two equal keys, YAML's own loaders silently drop the first."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A table.

        Raises:
            yaml.constructor.ConstructorError: a key comes twice.
        """
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for (key_node, _), key in zip(node.value, keys, strict=True):
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} comes twice", key_node.start_mark)
        return super().construct_mapping(node, deep)


def load_yaml(text: str) -> Any:
    """The document that a text means.

    Raises:
        yaml.YAMLError: it is none, or a key comes twice.
    """
    return load_with(_StrictLoader, text)


def load_with(loader: type[yaml.SafeLoader], text: str | bytes) -> Any:
    """The document that a text means to a loader that is stricter than the safe one.

    Raises:
        yaml.YAMLError: it is none.
    """
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506 - a SafeLoader, only stricter
    # what its loader lets through for values that look like dates or numbers and are none, and for nesting without end
    except (ValueError, LookupError, AttributeError, TypeError, RecursionError) as error:
        raise yaml.YAMLError(f"a value in it cannot be read ({error})") from error
