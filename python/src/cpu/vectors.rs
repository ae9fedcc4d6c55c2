//! Dispatch to the widest vector instructions of this CPU, and lane-wise arithmetic.

use pyo3::prelude::*;

use super::element::Element;

/// Lanes per vector: one AVX-512 register, two of AVX2, four of NEON.
pub(super) const LANES: usize = 16;

/// A vector of `LANES` numbers.
pub(super) type Lanes = [f32; LANES];

/// Work that is compiled once per instruction set.
pub(super) trait Kernel {
    /// The result.
    type Output;

    /// Runs the kernel. It and everything it calls must be `#[inline(always)]`: otherwise the code
    /// is not recompiled for the instruction set.
    fn run(self) -> Self::Output;
}

/// Runs `kernel` with the widest instructions of this CPU.
#[cfg(target_arch = "x86_64")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
        // SAFETY: this CPU has these instructions.
        unsafe { run_avx512(kernel) }
    } else if fast() {
        // SAFETY: this CPU has these instructions.
        unsafe { run_avx2(kernel) }
    } else {
        kernel.run()
    }
}

/// Runs `kernel` with the target's baseline instructions; only x86-64 has run-time dispatch.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx2,fma")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run()
}

/// Returns whether this CPU has fused multiply-add. Without it these kernels are correct, but
/// slower than torch's.
#[pyfunction]
#[cfg(target_arch = "x86_64")]
pub(super) fn fast() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")
}

/// Returns whether this CPU has fused multiply-add. Without it these kernels are correct, but
/// slower than torch's.
#[pyfunction]
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn fast() -> bool {
    cfg!(target_arch = "aarch64")
}

/// Returns `f` of every lane.
#[inline(always)]
pub(super) fn each(mut f: impl FnMut(usize) -> f32) -> Lanes {
    let mut out = [0.0; LANES];
    for (lane, value) in out.iter_mut().enumerate() {
        *value = f(lane);
    }
    out
}

/// Returns the sum of the lanes by pairwise halving.
#[inline(always)]
pub(super) fn sum(lanes: Lanes) -> f32 {
    let mut eight = [0.0; 8];
    for lane in 0..8 {
        eight[lane] = lanes[lane] + lanes[lane + 8];
    }
    let mut four = [0.0; 4];
    for lane in 0..4 {
        four[lane] = eight[lane] + eight[lane + 4];
    }
    (four[0] + four[2]) + (four[1] + four[3])
}

/// Returns the sum of a[i] b[i].
#[inline(always)]
pub(super) fn dot<A: Element, B: Element>(a: &[A], b: &[B]) -> f32 {
    let (a_lanes, a_rest) = a.as_chunks::<LANES>();
    let (b_lanes, b_rest) = b.as_chunks::<LANES>();
    let mut total = [0.0; LANES];
    for (a, b) in a_lanes.iter().zip(b_lanes) {
        total = each(|l| a[l].wide().mul_add(b[l].wide(), total[l]));
    }
    let rest = a_rest.iter().zip(b_rest);
    rest.fold(sum(total), |sum, (a, b)| a.wide().mul_add(b.wide(), sum))
}

/// Returns e^x to two units in the last place for x in -87 .. 88; x is clamped to that range. NaN
/// stays NaN.
///
/// x = n ln 2 + r with |r| <= ln 2 / 2. e^r is a Taylor series whose eighth term is below half a
/// unit; 2^n is built from its bits. ln 2 is split in two, so n ln 2 loses no bits.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // 1.5 * 2^23: adding it leaves the nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
    let mut series = 1.0 / 5040.0;
    for term in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        series = r.mul_add(series, term);
    }
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
    series * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_units() {
        for i in -870_000..=880_000_i32 {
            let x = i as f32 * 1e-4;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 2.4e-7, "exp({x}) has relative error {error:e}");
        }
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
    }

    #[test]
    fn dot_handles_a_partial_vector() {
        for n in [0, 1, 15, 16, 17, 33] {
            let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let expected: f32 = a.iter().map(|x| x * x).sum();
            assert_eq!(dot(&a, &a), expected);
        }
    }
}
