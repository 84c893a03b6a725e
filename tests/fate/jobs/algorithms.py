"""A script for FATE's launcher: one of FATE's own algorithms on small data; each party writes down what came out.

The environment names the algorithm (ALGORITHM), the federation that has to carry it (EXPECTED_FEDERATION) and a
directory for the outcome of each party (OUTCOMES).
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fate.arch.dataframe import PandasReader
from fate.arch.launchers.multiprocess_launcher import launch

ROWS = 120


def run(ctx: Any) -> None:
    """One party's part."""
    expected = os.environ["EXPECTED_FEDERATION"]
    assert type(ctx.federation).__name__ == expected, type(ctx.federation)
    outcome = ALGORITHMS[os.environ["ALGORITHM"]](ctx)
    role, party = ctx.local.party
    Path(os.environ["OUTCOMES"], f"{role}-{party}.json").write_text(json.dumps(outcome, default=_plain))


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _rows(ctx: Any) -> pd.DataFrame:
    """The guest has the label and two columns, each host three; ids are theirs in common."""
    chance = np.random.default_rng(7)
    columns = chance.normal(size=(ROWS, 5))
    label = (columns.sum(axis=1) > 0).astype(np.int32)
    ids = [f"person-{number}" for number in range(ROWS)]
    if ctx.is_on_guest:
        mine = pd.DataFrame(columns[:, :2], columns=["x0", "x1"])
        mine.insert(0, "y", label)
    else:
        mine = pd.DataFrame(columns[:, 2:], columns=["x0", "x1", "x2"])
    mine.insert(0, "id", ids)
    mine.insert(0, "sample_id", [str(number) for number in range(ROWS)])
    return mine


def _frame(ctx: Any, rows: pd.DataFrame | None = None) -> Any:
    reader = PandasReader(
        sample_id_name="sample_id",
        match_id_name="id",
        label_name="y" if ctx.is_on_guest else None,
        dtype="float64",
        partition=2,
    )
    return reader.to_frame(ctx, _rows(ctx) if rows is None else rows)


def _values(frame: Any) -> Any:
    shown = frame.as_pd_df()
    return shown.sort_values("sample_id").astype(str).to_numpy().tolist()


def _encrypted(ctx: Any, kind: str) -> None:
    from fate.arch.config import cfg
    from fate.arch.unify import device

    getattr(cfg.safety.phe, kind).allow = True
    ctx.cipher.set_phe(device.CPU, {"kind": kind, "key_length": 1024})


def secureboost(ctx: Any) -> Any:
    """Trees over encrypted gradients."""
    from fate.ml.ensemble.algo.secureboost.hetero.guest import HeteroSecureBoostGuest
    from fate.ml.ensemble.algo.secureboost.hetero.host import HeteroSecureBoostHost

    frame = _frame(ctx)
    if ctx.is_on_guest:
        _encrypted(ctx, os.environ.get("CIPHER", "paillier"))
        booster = HeteroSecureBoostGuest(num_trees=2, max_depth=2, max_bin=8)
    else:
        booster = HeteroSecureBoostHost(num_trees=2, max_depth=2, max_bin=8)
    booster.fit(ctx.sub_ctx("fit"), frame)
    predicted = booster.predict(ctx.sub_ctx("predict"), frame)
    return _values(predicted) if ctx.is_on_guest else len(booster.get_model())


def sshe_lr(ctx: Any) -> Any:
    """Logistic regression on shared secrets. FATE's own is not repeatable, so only what has to be is told."""
    from fate.ml.glm.hetero.sshe.sshe_lr import SSHELogisticRegression

    ctx.mpc.init()
    model = SSHELogisticRegression(
        epochs=2,
        batch_size=60,
        tol=1e-4,
        early_stop="diff",
        learning_rate=0.1,
        init_param={"method": "zeros", "fill_val": 0.0, "fit_intercept": False, "random_state": None},
    )
    model.fit(ctx.sub_ctx("fit"), _frame(ctx))
    return sorted(model.get_model())


def coordinated_lr(ctx: Any) -> Any:
    """Logistic regression with an arbiter that has the key."""
    schedule = {"method": "constant", "scheduler_params": {"factor": 1.0}}
    optimizer = {"method": "sgd", "penalty": "l2", "alpha": 0.1, "optimizer_params": {"lr": 0.1}}
    init = {"method": "zeros", "fill_val": 0.0, "fit_intercept": False, "random_state": None}
    given = {"epochs": 2, "batch_size": None, "optimizer_param": optimizer, "learning_rate_param": schedule}
    if ctx.is_on_arbiter:
        from fate.ml.glm.hetero.coordinated_lr.arbiter import CoordinatedLRModuleArbiter

        _encrypted(ctx, "paillier")
        CoordinatedLRModuleArbiter(early_stop="diff", tol=1e-4, **given).fit(ctx.sub_ctx("fit"))
        return None
    if ctx.is_on_guest:
        from fate.ml.glm.hetero.coordinated_lr.guest import CoordinatedLRModuleGuest as Model
    else:
        from fate.ml.glm.hetero.coordinated_lr.host import CoordinatedLRModuleHost as Model
    frame = _frame(ctx)
    model = Model(init_param=init, **given)
    model.fit(ctx.sub_ctx("fit"), frame)
    predicted = model.predict(ctx.sub_ctx("predict"), frame)
    return None if predicted is None else len(_values(predicted))


def pearson(ctx: Any) -> Any:
    """Correlations on shared secrets."""
    from fate.ml.statistics.pearson_correlation import PearsonCorrelation

    frame = _frame(ctx)
    columns = [name for name in frame.schema.columns if name.startswith("x")]
    module = PearsonCorrelation(local_only=False, calc_local_vif=False, select_cols=columns)
    module.fit(ctx.sub_ctx("fit"), frame)
    remote = module.remote_corr
    return np.round(np.asarray(remote, dtype=float), 3).tolist() if remote is not None else None


def binning(ctx: Any) -> Any:
    """Metrics of a host's bins over encrypted labels."""
    from fate.ml.feature_binning.hetero_feature_binning import HeteroBinningModuleGuest, HeteroBinningModuleHost

    frame = _frame(ctx)
    if ctx.is_on_guest:
        _encrypted(ctx, "paillier")
        module = HeteroBinningModuleGuest(method="quantile", n_bins=4, bin_col=["x0", "x1"], category_col=[])
    else:
        module = HeteroBinningModuleHost(method="quantile", n_bins=4, bin_col=["x0", "x1", "x2"], category_col=[])
    module.fit(ctx.sub_ctx("fit"), frame)
    binned = module._bin_obj.bucketize_data(frame)
    module.compute_metrics(ctx.sub_ctx("metrics"), binned)
    return sorted(module.get_model())


def psi(ctx: Any) -> Any:
    """Which rows both have."""
    from fate.arch.protocol.psi import psi_run

    rows = _rows(ctx)
    mine = rows[:90] if ctx.is_on_guest else rows[30:]
    return sorted(row[1] for row in _values(psi_run(ctx, _frame(ctx, mine))))


ALGORITHMS: dict[str, Callable[[Any], Any]] = {
    function.__name__: function for function in (secureboost, sshe_lr, coordinated_lr, pearson, binning, psi)
}


if __name__ == "__main__":
    sys.exit(launch(run))
