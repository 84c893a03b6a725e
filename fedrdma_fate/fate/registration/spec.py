"""The backend's part of a task's configuration, as FATE (pydantic 1) models it."""

from __future__ import annotations

from typing import Any, Literal


def federation_spec(parties_spec: Any, *, clean_up: bool = False) -> Any:
    """The model of a `federation` section of type fedrdma.

    Args:
        parties_spec: FATE's, or FATE Flow's, `FederationPartiesSpec`.
        clean_up: of the configuration of what comes after a task, and only destroys.
    """
    import pydantic

    class Strict(pydantic.BaseConfig):  # type: ignore[misc]
        extra = pydantic.Extra.forbid

    config = pydantic.create_model(
        "FedRDMAConfig",
        __config__=Strict,
        gateway=(str | None, None),
        gateways=(dict[str, str], {}),
        mode=(str | None, None),
        connect_timeout=(float, 30.0),
        put_timeout=(float | None, None),
        get_timeout=(float | None, None),
        journal=(str | None, None),
        allowed_names=(list[str], []),
        tasks_access=(str | None, None),
        sums=(bool, True),
        loss_tolerance=(float, 0.0),
        straggler_wait=(float | None, None),
    )
    metadata = pydantic.create_model(
        "FedRDMAMetadataSpec", federation_id=(str, ...), parties=(parties_spec, ...), fedrdma_config=(config, ...)
    )
    spec = pydantic.create_model("FedRDMAFederationSpec", type=(Literal["fedrdma"], ...), metadata=(metadata, ...))
    spec.is_for_clean_up = clean_up
    return spec


def is_for_clean_up(federation: Any) -> bool:
    """Whether a `federation` section is that of a clean-up."""
    return bool(type(federation).is_for_clean_up)


def allow_in_union(model: Any, spec: Any) -> None:
    """Add a model to the closed Union of a `federation` field."""
    field = model.__fields__["federation"]
    field.sub_fields.append(field._create_sub_type(spec, f"{field.name}_{spec.__name__}"))
    model.__schema_cache__.clear()
