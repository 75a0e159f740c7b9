"""The C++ example builds, and decides as the file's golden decisions say.

It needs cmake, a compiler, the library, which the Python package brings, and headers: those in
`ONNXRUNTIME_INCLUDE` or where a system keeps them.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from agreement import random_policy

import gemrl
from gemrl.deploy.export.write import export_policy

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "cpp"
HEADER = "onnxruntime_cxx_api.h"
PLACES = ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime", "/usr/local/include")


def headers():
    """The folder with ONNX Runtime's headers, if there is one."""
    folders = [os.environ.get("ONNXRUNTIME_INCLUDE", ""), *PLACES]
    return next((folder for folder in folders if (Path(folder) / HEADER).is_file()), None)


def library(folder):
    """The Python package's library under the names that linker and loader look for."""
    import onnxruntime

    found = list((Path(onnxruntime.__file__).parent / "capi").glob("libonnxruntime.so.*"))
    if not found:
        pytest.skip("the Python package of ONNX Runtime brings no libonnxruntime.so")
    for name in ("libonnxruntime.so.1", "libonnxruntime.so"):
        (folder / name).symlink_to(found[0])
    return folder / "libonnxruntime.so"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    if shutil.which("cmake") is None or not (shutil.which("c++") or shutil.which("g++")):
        pytest.skip("cmake and a C++ compiler are not at hand")
    if headers() is None:
        pytest.skip(f"no {HEADER}: name its folder in ONNXRUNTIME_INCLUDE")
    folder = tmp_path_factory.mktemp("cpp")
    given = [f"-DONNXRUNTIME_INCLUDE={headers()}", f"-DONNXRUNTIME_LIBRARY={library(folder)}"]
    build = folder / "build"
    for words in (["-S", EXAMPLE, "-B", build, *given], ["--build", build]):
        done = subprocess.run(["cmake", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning:" not in done.stderr
    return build / "decide"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "policy.onnx"
    export_policy(random_policy(0), path)
    return path


@pytest.fixture(scope="module")
def drawing(tmp_path_factory):
    """A file that draws among its candidates."""
    path = tmp_path_factory.mktemp("drawing") / "policy.onnx"
    export_policy(random_policy(0), path, gemrl.Knobs(temperature=0.3))
    return path


def call(program, *words):
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return done.returncode, lines, done.stderr


@pytest.mark.parametrize("file", ["exported", "drawing"])
def test_it_repeats_the_golden_decisions(program, file, request, tmp_path):
    exported = request.getfixturevalue(file)
    about = json.loads(exported.with_suffix(".json").read_text())
    golden = about["golden"]
    repeated = 0
    for case in golden["cases"]:
        if set(case["given"]) - {"k_smooth"} or case["given"].get("k_smooth", [1]) != [1]:
            continue  # The example leaves the knobs at their defaults.
        for row, observation in enumerate(golden["observation"]):
            n = case["n"]
            gate, normal = (golden[name][row][:n] for name in ("gate_noise", "normal_noise"))
            noise = tmp_path / "noise.txt"
            draw = golden["draw_noise"][row][: n + 1] if file == "drawing" else []
            noise.write_text(" ".join(map(str, [*gate, *np.ravel(normal), *draw])))
            code, lines, error = call(program, exported, n, f"@{noise}", *observation)
            assert (code, error) == (0, "")
            expected = {name: values[row] for name, values in case["expected"].items()}
            allowed = about["tolerance"]
            action = np.array(lines[0].split(), float)
            np.testing.assert_allclose(action, expected.pop("action"), atol=allowed["action"])
            told = dict(line.split() for line in lines[1:])
            assert set(told) == set(expected)
            for name, value in expected.items():
                assert abs(float(told[name]) - value) <= allowed.get(name, 0), name
            repeated += 1
    assert repeated == 12


def test_a_seed_decides_and_a_mistake_is_one_line(program, exported):
    state = ["0.1"] * 5
    first, again, other = (call(program, exported, 64, seed, *state) for seed in (1, 1, 2))
    assert first[0] == 0
    assert first == again
    assert first[1][0] != other[1][0]
    for words in (
        [exported, 64, 0, "1", "2"],
        [exported, 64, 0, *["nan"] * 5],
        [exported, "x", 0, *state],
        [exported, 64, "@missing.txt", *state],
        [exported.with_name("none.onnx"), 64, 0, *state],
    ):
        code, lines, error = call(program, *words)
        assert (code, lines) == (2, [])
        assert error.startswith("decide: ")
        assert error.count("\n") == 1
