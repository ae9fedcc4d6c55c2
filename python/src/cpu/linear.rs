//! Linear layers x W^T + b with packed weights.
//!
//! W [outputs, inputs] is stored in panels of `LANES` outputs: panel, then input, then output. A
//! tile of `PANELS` panels and up to `ROWS` rows of x stays in registers during the loop over the
//! inputs, so W is read once, sequentially, for all rows. Source: Goto and van de Geijn, Anatomy of
//! High-Performance Matrix Multiplication, 2008; here the matrix is packed once, at load.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use super::element::{Bf16, DType, Element};
use super::memory::{self, Memory, Views};
use super::tape::{self, Op};
use super::tensor::Tensor;
use super::threads;
use super::vectors::{self, Kernel, LANES, Lanes, each};
use super::views::{Along, Blocks, End, Rows, RowsMut};

/// Panels per tile. On a 2.8 GHz AVX-512 core, 12 million bfloat16 weights and one row took 2.7 ms
/// with one panel, 2.0 with two, 1.6 with four and with eight.
const PANELS: usize = 4;
/// Rows per tile. With 48 rows: 101 GFLOP/s with four, 113 with six, but small batches leave more
/// of such a tile empty; above eight, accumulators spill from registers.
const ROWS: usize = 4;
/// Inputs per partial sum. Shorter partial sums round less.
const DEPTH: usize = 1024;
/// Multiplications per additional thread: 10 us of work. With one row, a step of brook took 0.48 ms
/// on two threads instead of 0.84.
const THREAD_WORK: usize = 128 << 10;

type Panel<W> = [W; LANES];

/// Packs a contiguous matrix [outputs, inputs] into `panels` [ceil(outputs / 16), inputs, 16] of
/// the same dtype; missing outputs are zero.
#[pyfunction]
#[expect(
    clippy::needless_pass_by_value,
    reason = "PyO3 passes arguments by value"
)]
pub(super) fn pack(matrix: Tensor, panels: Tensor) -> PyResult<()> {
    let mut memory = memory::lock();
    let views = Views::new(&mut memory);
    match matrix.kind {
        DType::Bfloat16 => pack_as::<Bf16>(views, &matrix, &panels),
        _ => pack_as::<f32>(views, &matrix, &panels),
    }
}

fn pack_as<'m, W: Element>(
    mut views: Views<'m>,
    matrix: &'m Tensor,
    panels: &'m Tensor,
) -> PyResult<()> {
    let matrix = views.rows::<W>(matrix)?;
    let shape = [matrix.count().div_ceil(LANES), matrix.width(), LANES];
    if panels.shape() != shape {
        return Err(mismatch("panels", panels.shape(), &shape));
    }
    let out = views.slice_mut::<W>(panels)?;
    out.fill(W::narrow(0.0));
    for output in 0..matrix.count() {
        let first = output / LANES * matrix.width() * LANES + output % LANES;
        for (input, &weight) in matrix.row(output).iter().enumerate() {
            out[first + input * LANES] = weight;
        }
    }
    Ok(())
}

/// Computes out [T, outputs] = x [T, inputs] W^T + bias. `panels` is the packed W, `threads` the
/// maximum number of threads. A row of out depends only on its row of x, to the last bit.
#[pyfunction]
pub(super) fn linear(
    py: Python<'_>,
    x: Tensor,
    panels: Tensor,
    bias: Option<Tensor>,
    out: Tensor,
    threads: usize,
) -> PyResult<()> {
    let op = Call {
        x,
        panels,
        bias,
        out,
        threads,
    };
    tape::launch_detached(py, op).map(drop)
}

struct Call {
    x: Tensor,
    panels: Tensor,
    bias: Option<Tensor>,
    out: Tensor,
    /// Maximum number of threads.
    threads: usize,
}

impl Op for Call {
    fn run(&self, memory: &mut Memory) -> PyResult<bool> {
        match (self.x.kind, self.panels.kind) {
            (DType::Float32, DType::Float32) => linear_as::<f32, f32>(self, memory),
            (DType::Float32, _) => linear_as::<f32, Bf16>(self, memory),
            (_, DType::Float32) => linear_as::<Bf16, f32>(self, memory),
            _ => linear_as::<Bf16, Bf16>(self, memory),
        }?;
        Ok(true)
    }
}

fn linear_as<A: Element, W: Element>(call: &Call, memory: &mut Memory) -> PyResult<()> {
    let mut views = Views::new(memory);
    let (x, out) = (views.rows::<A>(&call.x)?, views.rows_mut::<A>(&call.out)?);
    let bias = call.bias.as_ref();
    let bias = bias.map(|bias| views.slice::<A>(bias)).transpose()?;
    let panels = &call.panels;
    let shape = [out.width().div_ceil(LANES), x.width(), LANES];
    if panels.shape() != shape {
        return Err(mismatch("panels", panels.shape(), &shape));
    }
    if out.count() != x.count() || bias.is_some_and(|bias| bias.len() != out.width()) {
        return Err(PyValueError::new_err("x, bias and out do not fit together"));
    }
    let (weights, _) = views.slice::<W>(panels)?.as_chunks::<LANES>();
    let work = x.count() * x.width() * out.width();
    let product = Product {
        weights,
        inputs: x.width(),
        x: &Tiles::new(x),
        bias,
    };
    product.run(out, call.threads.min(1 + work / THREAD_WORK));
    Ok(())
}

/// The rows of x in tiles. For each input, the values of all rows of a tile are adjacent.
struct Tiles {
    /// Tiles of `ROWS` rows, one after another; missing rows are zero.
    full: Vec<[f32; ROWS]>,
    /// A last tile of one row, or empty.
    single: Vec<[f32; 1]>,
}

impl Tiles {
    fn new<A: Element>(x: Rows<'_, A>) -> Self {
        let full = if x.count() % ROWS == 1 {
            x.count() / ROWS
        } else {
            x.count().div_ceil(ROWS)
        };
        let mut tiles = Self {
            full: vec![[0.0; ROWS]; full * x.width()],
            single: Vec::new(),
        };
        for row in 0..x.count().min(full * ROWS) {
            let tile = &mut tiles.full[row / ROWS * x.width()..];
            for (input, value) in x.row(row).iter().enumerate() {
                tile[input][row % ROWS] = value.wide();
            }
        }
        if x.count() > full * ROWS {
            tiles
                .single
                .extend(x.row(x.count() - 1).iter().map(|value| [value.wide()]));
        }
        tiles
    }
}

/// One matrix product.
#[derive(Clone, Copy)]
struct Product<'a, A, W> {
    weights: &'a [Panel<W>],
    inputs: usize,
    x: &'a Tiles,
    bias: Option<&'a [A]>,
}

impl<A: Element, W: Element> Product<'_, A, W> {
    /// Splits the outputs among `threads` threads, in blocks of whole tiles.
    fn run(self, out: RowsMut<'_, A>, threads: usize) {
        let tiles = out.width().div_ceil(PANELS * LANES);
        let size = threads::block(tiles, threads) * PANELS * LANES;
        let outputs = &out.into_blocks(Along::Columns, size);
        threads::share(threads, outputs.count(), &|end| {
            vectors::run(Part {
                product: self,
                outputs,
                end,
            })
        });
    }

    /// Computes the outputs of `P` panels from `panel` on, which begin at `column` of `out`.
    #[inline(always)]
    fn panels<const P: usize>(&self, panel: usize, out: &mut RowsMut<'_, A>, column: usize) {
        let weights: [_; P] =
            std::array::from_fn(|p| &self.weights[(panel + p) * self.inputs..][..self.inputs]);
        let mut row = 0;
        for x in self.x.full.chunks_exact(self.inputs) {
            let sums = tile(weights, x);
            for m in 0..ROWS.min(out.count() - row) {
                let sums = sums.map(|panel| panel[m]);
                self.store(panel, sums, &mut out.row_mut(row + m)[column..]);
            }
            row += ROWS;
        }
        if !self.x.single.is_empty() {
            let sums = tile(weights, &self.x.single).map(|panel| panel[0]);
            self.store(panel, sums, &mut out.row_mut(out.count() - 1)[column..]);
        }
    }

    /// Adds the bias and stores. `out` begins at panel `panel`; the last panel may have more lanes
    /// than outputs are left.
    #[inline(always)]
    fn store<const P: usize>(&self, panel: usize, sums: [Lanes; P], out: &mut [A]) {
        let (full, rest) = out.as_chunks_mut::<LANES>();
        for ((panel, sums), out) in (panel..).zip(&sums).zip(full.iter_mut()) {
            let bias = match self.bias {
                Some(bias) => {
                    let bias = &bias[panel * LANES..][..LANES];
                    each(|lane| bias[lane].wide())
                }
                None => [0.0; LANES],
            };
            *out = each(|lane| sums[lane] + bias[lane]).map(A::narrow);
        }
        if let Some(sums) = sums.get(full.len()) {
            let first = (panel + full.len()) * LANES;
            for (lane, out) in rest.iter_mut().enumerate() {
                let bias = self.bias.map_or(0.0, |bias| bias[first + lane].wide());
                *out = A::narrow(sums[lane] + bias);
            }
        }
    }
}

/// The work of one thread: it takes blocks of outputs until none is left.
struct Part<'a, A, W> {
    product: Product<'a, A, W>,
    outputs: &'a Blocks<'a, A>,
    end: End,
}

impl<A: Element, W: Element> Kernel for Part<'_, A, W> {
    type Output = usize;

    /// Returns the number of blocks taken.
    #[inline(always)]
    fn run(self) -> usize {
        let mut done = 0;
        while let Some(mut block) = self.outputs.take(self.end) {
            let (first, end) = (block.range.start / LANES, block.range.end.div_ceil(LANES));
            let mut panel = first;
            while panel + PANELS <= end {
                let column = (panel - first) * LANES;
                self.product
                    .panels::<PANELS>(panel, &mut block.rows, column);
                panel += PANELS;
            }
            for panel in panel..end {
                let column = (panel - first) * LANES;
                self.product.panels::<1>(panel, &mut block.rows, column);
            }
            done += 1;
        }
        done
    }
}

/// Returns the sums over all inputs for `P` panels and `M` rows.
#[inline(always)]
fn tile<W: Element, const P: usize, const M: usize>(
    weights: [&[Panel<W>]; P],
    x: &[[f32; M]],
) -> [[Lanes; M]; P] {
    let mut total = [[[0.0; LANES]; M]; P];
    for (first, x) in (0..).step_by(DEPTH).zip(x.chunks(DEPTH)) {
        let part = partial(weights.map(|panel| &panel[first..][..x.len()]), x);
        for (total, part) in total.as_flattened_mut().iter_mut().zip(part.as_flattened()) {
            *total = each(|l| total[l] + part[l]);
        }
    }
    total
}

#[inline(always)]
fn partial<W: Element, const P: usize, const M: usize>(
    weights: [&[Panel<W>]; P],
    x: &[[f32; M]],
) -> [[Lanes; M]; P] {
    let mut sums = [[[0.0; LANES]; M]; P];
    let weights = weights.map(|panel| &panel[..x.len()]);
    for (input, x) in x.iter().enumerate() {
        for (sums, panel) in sums.iter_mut().zip(weights) {
            let weight = each(|l| panel[input][l].wide());
            for (sum, &x) in sums.iter_mut().zip(x) {
                *sum = each(|l| weight[l].mul_add(x, sum[l]));
            }
        }
    }
    sums
}

fn mismatch(name: &str, found: &[usize], expected: &[usize]) -> PyErr {
    PyValueError::new_err(format!("{name} has shape {found:?}; expected {expected:?}"))
}
