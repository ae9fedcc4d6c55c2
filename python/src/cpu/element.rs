//! Element types of tensors.

/// The dtype of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DType {
    Float32,
    Bfloat16,
    Int32,
    Int64,
    Bool,
}

/// A type that can be stored in a tensor.
///
/// # Safety
/// Memory of dtype `DTYPE` must be valid for this type, whatever its bits.
pub(crate) unsafe trait Stored: Copy + Send + Sync + 'static {
    const DTYPE: DType;
}

/// A floating-point element. All arithmetic on it is in float32.
pub(super) trait Element: Stored {
    /// Converts to float32 exactly.
    fn wide(self) -> f32;
    /// Rounds to the nearest value, ties to even.
    fn narrow(value: f32) -> Self;
}

/// A bfloat16: the upper half of a float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Bf16(u16);

// SAFETY: the same size, and any bits are a value.
unsafe impl Stored for f32 {
    const DTYPE: DType = DType::Float32;
}

// SAFETY: torch stores the upper halves of float32 too; any bits are a value.
unsafe impl Stored for Bf16 {
    const DTYPE: DType = DType::Bfloat16;
}

// SAFETY: the same size, and any bits are a value.
unsafe impl Stored for i32 {
    const DTYPE: DType = DType::Int32;
}

// SAFETY: the same size, and any bits are a value. For bit masks.
unsafe impl Stored for u32 {
    const DTYPE: DType = DType::Int32;
}

// SAFETY: the same size, and any bits are a value.
unsafe impl Stored for i64 {
    const DTYPE: DType = DType::Int64;
}

// SAFETY: the same size, and any bits are a value; torch writes only 0 and 1.
unsafe impl Stored for u8 {
    const DTYPE: DType = DType::Bool;
}

impl Element for f32 {
    #[inline(always)]
    fn wide(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        value
    }
}

impl Element for Bf16 {
    #[inline(always)]
    fn wide(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
        let bits = if value.is_nan() {
            bits | 0x40_0000
        } else {
            rounded
        };
        Self((bits >> 16) as u16)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bf16_rounds_to_even() {
        for (value, bits) in [
            (1.0, 0x3f80),
            (f32::from_bits(0x3f80_8000), 0x3f80),
            (f32::from_bits(0x3f81_8000), 0x3f82),
            (f32::from_bits(0x3f80_8001), 0x3f81),
            (f32::MAX, 0x7f80),
            (f32::NEG_INFINITY, 0xff80),
        ] {
            assert_eq!(Bf16::narrow(value), Bf16(bits), "{value}");
        }
        assert!(Bf16::narrow(f32::from_bits(0x7f80_0001)).wide().is_nan());
    }
}
