"""Traced PyTorch modules compute what PyTorch computes, have its gradients, and can be kept in a file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedveil
from fedveil.core.errors import ConfigError, DataError
from fedveil.models import kept
from fedveil.models.graph.model import OPS

torch = pytest.importorskip("torch")
nn = torch.nn
modules = pytest.importorskip("torch_modules")

KEY = jax.random.key(0)
CASES = {
    "resnet": (modules.Small, (8, 8, 1), False),
    "mixed": (modules.Mixed, (9, 12, 3), False),
    "words": (modules.Words, (6,), True),
    "series": (modules.Series, (9,), False),
}


@pytest.fixture(scope="module", params=CASES)
def traced(request):
    """A module, its translation, and inputs for both."""
    kind, shape, integers = CASES[request.param]
    torch.manual_seed(3)
    module = kind()
    model = fedveil.from_torch(module, shape, integers=integers)
    rng = np.random.default_rng(1)
    x = rng.integers(0, 7, (4, *shape)) if integers else rng.normal(size=(4, *shape))
    x = x.astype(np.float32)
    given = torch.from_numpy(np.moveaxis(x, -1, 1).copy() if len(shape) == 3 else x)
    given = given.long() if integers else given
    return module, model, x, given


def test_the_translation_agrees_with_pytorch(traced):
    module, model, x, given = traced
    with torch.no_grad():
        theirs = module.eval()(given).numpy()
    np.testing.assert_allclose(jax.jit(model.apply)(model.init(KEY), x), theirs, rtol=0, atol=1e-5)


def test_gradients_agree_with_pytorch(traced):
    """Every trained parameter has PyTorch's gradient of the cross entropy; a shared one has the sum of both uses."""
    module, model, x, given = traced
    y = np.arange(4) % 2
    loss = torch.nn.functional.cross_entropy(module.eval()(given), torch.from_numpy(y))
    module.zero_grad()
    loss.backward()
    theirs = {name: p.grad.numpy() for name, p in module.named_parameters(remove_duplicate=False) if p.grad is not None}

    def ours(params):
        return -jnp.mean(jax.nn.log_softmax(model.apply(params, x))[jnp.arange(4), y])

    found = jax.jit(jax.grad(ours))(model.init(KEY))
    flat = {
        (f"{layer}.{name}" if layer != "top" else name): a for layer, own in found.items() for name, a in own.items()
    }
    assert flat and set(flat) <= set(theirs)
    assert {id(dict(module.named_parameters(remove_duplicate=False))[name]) for name in flat} == {
        id(p) for p in module.parameters() if p.requires_grad
    }
    for name, gradient in flat.items():
        np.testing.assert_allclose(gradient, theirs[name], rtol=1e-4, atol=2e-6, err_msg=name)


def test_a_file_gives_the_same_network_back(traced, tmp_path):
    model = traced[1]
    (tmp_path / "net").write_bytes(kept.as_bytes(model))
    again = kept.read_network(tmp_path / "net")
    assert again.graph == model.graph
    for ours, theirs in ((again.start, model.start), (again.constants, model.constants)):
        assert set(ours) == set(theirs)
        assert all(np.array_equal(ours[name], theirs[name]) and ours[name].dtype == theirs[name].dtype for name in ours)


def test_the_module_itself_is_left_alone():
    module = modules.Small().train()
    before = {name: p.clone() for name, p in module.named_parameters()}
    model = fedveil.from_torch(module, (8, 8, 1))
    assert module.training and all(torch.equal(p, before[name]) for name, p in module.named_parameters())
    start = np.asarray(model.init(KEY)["out"]["bias"])
    with torch.no_grad():
        module.out.bias.add_(1)
    assert np.array_equal(model.init(KEY)["out"]["bias"], start)


class Batchwise(nn.Module):
    """Subtracts the batch's mean: an example's output depends on the others."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(x - x.mean(dim=0, keepdim=True))


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(x), x


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(x) if x.sum() > 0 else -self.out(x)


REFUSED = {
    "1: batch_norm.*GroupNorm": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), (8, 8, 1)),
    "conv_transpose2d.*did you mean": (
        lambda: nn.Sequential(nn.ConvTranspose2d(1, 2, 3), nn.Flatten(), nn.Linear(200, 2)),
        (8, 8, 1),
    ),
    "ceil_mode": (lambda: nn.Sequential(nn.MaxPool2d(3, ceil_mode=True), nn.Flatten(), nn.Linear(9, 2)), (8, 8, 1)),
    "another output in another batch": (Batchwise, (4,)),
    "returns 2 values": (Two, (4,)),
    "Branches.*cannot be traced": (Branches, (4,)),
    "logits of shape": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3)), (8, 8, 1)),
    "no parameters": (lambda: nn.Sequential(nn.Flatten()), (4, 1, 1)),
    "cannot be traced.*mat1 and mat2": (lambda: nn.Sequential(nn.Linear(8, 10)), (4,)),
}


@pytest.mark.parametrize("says", REFUSED)
def test_what_cannot_be_traced_is_named_in_one_line(says):
    make, shape = REFUSED[says]
    with pytest.raises(ConfigError, match=says) as caught:
        fedveil.from_torch(make(), shape)
    assert "\n" not in str(caught.value)


def test_other_objects_are_refused():
    with pytest.raises(ConfigError, match=r"takes a torch\.nn\.Module"):
        fedveil.from_torch(lambda x: x, (4,))


# --- files


def test_networks_of_our_layers_are_kept_too(tmp_path):
    model = fedveil.from_torch(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), (8, 8, 1))
    (tmp_path / "net").write_bytes(kept.as_bytes(model))
    again = kept.read_network(tmp_path / "net")
    x = np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype(np.float32)
    assert again.layers == model.layers
    assert np.array_equal(again.apply(again.init(KEY), x), model.apply(model.init(KEY), x))


def test_damaged_files_are_refused_in_one_line(tmp_path):
    from safetensors.numpy import save

    model = fedveil.from_torch(modules.Series(), (9,))
    whole = kept.as_bytes(model)
    cases = {
        "no such file": None,
        "no whole .safetensors": whole[:-8],
        "arrays and no network": save({"a": np.ones(2)}),
        "cannot be read": whole.replace(b'version\\": 1', b'version\\": 9'),
        "has no translation": whole.replace(b'op\\": \\"conv1d', b'op\\": \\"conv9d'),
    }
    for number, (says, content) in enumerate(cases.items()):
        path = tmp_path / str(number)
        if content is not None:
            assert content != whole
            path.write_bytes(content)
        with pytest.raises(DataError, match=says):
            kept.read_network(path)
    with pytest.raises(ConfigError, match="Python code"):
        kept.as_bytes(fedveil.from_functions(lambda key: {"a": jnp.ones((2, 2))}, lambda p, x: x @ p["top"]["a"]))


def test_a_run_keeps_its_network_for_other_processes(tmp_path, fedveil_cli):
    """Train with a traced module; the ledger, an attack and a report work in new processes, from the folder alone."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    np.savez(tmp_path / "own.npz", x=(rng.normal(size=(200, 9)) + y[:, None]).astype(np.float32), y=y)
    settings = {
        "data": {"name": "file", "file": str(tmp_path / "own.npz"), "clients": 5, "partition": "iid"},
        "train": {"rounds": 2, "local_steps": 1, "batch": 4},
        "defense": {"name": "fed-cdp", "noise": 1.0},
    }
    run = tmp_path / "run"
    model = fedveil.from_torch(modules.Series(), (9,))
    result = fedveil.train(settings, model=model, out=run)
    assert set(result.params) == {"conv", "out", "top"}
    attack = ("attack", "--run", run, "-s", "attack.images=1", "-s", "attack.iterations=2", "--json")
    done = fedveil_cli(*attack, cwd=tmp_path)
    assert done.code == 0, done.err
    certified = [row.epsilon for row in result.ledger if row.certified]
    again = fedveil.account(run, accountant=("paper", "pld"))
    assert any(certified) and [row.epsilon for row in again if row.certified] == certified
    told = fedveil_cli("audit", "--run", run, "--method", "noise", "--unit", "example", "--json", cwd=tmp_path)
    assert told.code == 0, told.err
    rows = [row for row in json.loads(told.out) if row["path"] == "own model"]
    assert rows and not any(row["alarm"] for row in rows)
    layers = {name for row in rows for name in result.params if name in row["score"] or name in row["reason"]}
    assert layers & {"conv", "out"}  # it is this network whose noise was tested
    (run / "network.safetensors").write_bytes(b"something else")
    assert "was changed after the run began" in fedveil_cli("audit", "--run", run, cwd=tmp_path).err
    changed = fedveil_cli(*attack, cwd=tmp_path)
    assert changed.code == 1 and "was changed after the run began" in changed.err
    (run / "network.safetensors").unlink()
    assert "is missing" in fedveil_cli(*attack, cwd=tmp_path).err


def test_every_operation_is_reached_by_its_pytorch_name():
    """Each name in the table is one of PyTorch's own."""
    names = torch._C._dispatch_get_all_op_names()
    known = {name.removeprefix("aten::").split(".")[0] for name in names if name.startswith("aten::")}
    assert set(OPS) - {"getitem"} <= known


def test_the_script_of_the_page_fits_on_a_screen():
    """An own network on own arrays, from data to report, in at most 25 lines. `test_docs.py` runs it."""
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n(import fedveil, numpy as np, torch\n.*?)```", page, re.DOTALL)
    assert "GroupNorm" in script and len(script.splitlines()) <= 25
    for step in ("fedveil.train(", "fedveil.attack(", "fedveil.account(", "fedveil.report("):
        assert script.count(step) == 1
