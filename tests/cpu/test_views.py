"""What the compiler refuses of views: whatever would give two of them the memory that one writes.

`python/src/cpu/views.rs` needs the standard library alone, so rustc compiles it here with a few
lines that use it.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

VIEWS = Path(__file__).parents[2] / "python/src/cpu/views.rs"
HEAD = f"""
#![allow(dead_code, unused)]
#[path = "{VIEWS}"]
mod views;
use views::{{Along, Blocks, End, Layout, Rows, RowsMut}};
fn shared(mut rows: RowsMut<'static, f32>, read: Rows<'static, f32>) {{
"""
GOOD = [
    "rows.row_mut(0)[0] = read.row(0)[0]; rows.row_mut(1)[0] = rows.row(0)[0];",
    "let copy = read; copy.row(0)[0] + read.row(1)[0];",
    """let blocks = rows.into_blocks(Along::Columns, 1);
    std::thread::scope(|scope| {
        let fill = |end| while let Some(mut b) = blocks.take(end) { b.rows.row_mut(0)[0] = 1.0; };
        for end in [End::Front, End::Back] { scope.spawn(move || fill(end)); }
    });""",
    """let blocks = rows.into_blocks(Along::Rows, 1);
    let (a, b) = (blocks.take(End::Back), blocks.take(End::Back));""",
]
BAD = {
    "let a = rows.row_mut(0); let b = rows.row_mut(1); a[0] = b[0];": "E0499",
    "let a = rows.row(0); rows.row_mut(1)[0] = 1.0; let b = a[0];": "E0502",
    "let copy = rows; rows.row_mut(0);": "E0382",
    "let copy = rows.clone();": "E0599",
    "read.row_mut(0);": "E0599",
    "let other = &rows; other.row_mut(0);": "E0596",
    "let blocks = rows.into_blocks(Along::Rows, 1); rows.row_mut(0);": "E0382",
    "let blocks = rows.into_blocks(Along::Rows, 1); let copy = blocks.clone();": "E0599",
    "let block = { let b = rows.into_blocks(Along::Rows, 1); b.take(End::Back) }; drop(block)": (
        "E0597"
    ),
    "fn send(r: RowsMut<'_, std::rc::Rc<u8>>) { std::thread::scope(|s| { s.spawn(|| r); }); }": (
        "E0277"
    ),
    "RowsMut::new(Layout { start: std::ptr::null_mut::<f32>(), count: 1, width: 1, stride: 1 });": (
        "E0133"
    ),
}


def compile_(body: str, folder: Path) -> str:
    """What rustc says, and nothing if it takes it."""
    rustc = shutil.which("rustc")
    if rustc is None:
        pytest.skip("rustc is not installed")
    source = folder / "use.rs"
    source.write_text(f"{HEAD}{body}\n}}\n")
    command = [rustc, "--edition", "2024", "--crate-type", "lib", "--emit", "metadata"]
    command += ["--out-dir", str(folder), str(source)]
    return subprocess.run(command, capture_output=True, text=True).stderr


@pytest.mark.parametrize("body", GOOD)
def test_sound_code_compiles(body: str, tmp_path: Path) -> None:
    assert compile_(body, tmp_path) == ""


@pytest.mark.parametrize("body", BAD)
def test_unsound_code_does_not_compile(body: str, tmp_path: Path) -> None:
    said = compile_(body, tmp_path)
    assert f"error[{BAD[body]}]" in said
    assert said.count("error[") == 1, said
